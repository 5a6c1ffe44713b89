// How many requests ended in the last ten minutes, by reason, stacked; and the same as a table.

import { $, el, reasonTag, say, set, svg } from './dom.js';
import { whole } from './format.js';

const [WIDTH, HEIGHT, STEPS] = [600, 140, 120];
/** Steps in a row of the table: a minute. */
const ROW = 12;

export class Flow {
  constructor() {
    this.reasons = [];
  }

  show({ step_seconds: length, reasons, counts }, counted) {
    const steps = counts.slice(-STEPS);
    if (this.reasons.join() !== reasons.join()) this.begin(reasons);
    const totals = steps.map((step) => step.reduce((sum, number) => sum + number, 0));
    const most = Math.max(1, ...totals);
    const width = WIDTH / STEPS;
    const paths = reasons.map(() => '');
    steps.forEach((step, at) => {
      // The newest at the right edge.
      const left = (STEPS - steps.length + at) * width;
      let bottom = HEIGHT;
      step.forEach((number, reason) => {
        if (!number) return;
        const height = (number / most) * (HEIGHT - 4);
        paths[reason] += `M${left.toFixed(1)} ${bottom.toFixed(1)}h${(width - 0.6).toFixed(1)}v${(-height).toFixed(1)}h${(0.6 - width).toFixed(1)}z`;
        bottom -= height;
      });
    });
    const sums = reasons.map((_, reason) => steps.reduce((sum, step) => sum + step[reason], 0));
    paths.forEach((path, reason) => {
      this.paths[reason].setAttribute('d', path);
      this.legend[reason].hidden = sums[reason] === 0;
      say(this.numbers[reason], ` ${whole(sums[reason])}`);
    });
    const told = reasons.filter((_, reason) => sums[reason]).map((name) => `${whole(sums[reasons.indexOf(name)])} ${name}`);
    const sentence = told.length ? `Requests that ended in the last ten minutes by reason: ${told.join(', ')}.` : counted ? 'No request ended in the last ten minutes.' : 'Requests are not counted: the configuration has metrics: false.';
    set($('flow'), 'aria-label', sentence);
    say($('flow-most'), told.length ? `highest: ${(most / length).toFixed(most < 10 * length ? 1 : 0)} per second` : sentence);
    this.table(reasons, steps, length);
  }

  begin(reasons) {
    this.reasons = reasons;
    this.paths = reasons.map((reason) => svg('path', { class: `fill-${reason}` }));
    $('flow').replaceChildren(...this.paths);
    this.numbers = reasons.map(() => el('span'));
    this.legend = reasons.map((reason, at) => el('li', {}, reasonTag(reason), this.numbers[at]));
    $('flow-legend').replaceChildren(...this.legend);
    $('flow-table').tHead.rows[0].replaceChildren(...['Minutes ago', ...reasons].map((name) => el('th', { scope: 'col' }, name)));
  }

  /** Only while somebody looks at it. */
  table(reasons, steps, length) {
    if (!$('flow-table').closest('details').open) return;
    const rows = [];
    for (let end = steps.length; end > 0; end -= ROW) {
      const minute = steps.slice(Math.max(0, end - ROW), end);
      const cells = reasons.map((_, reason) => el('td', {}, whole(minute.reduce((sum, step) => sum + step[reason], 0))));
      rows.push(el('tr', {}, el('th', { scope: 'row' }, `${Math.round(((steps.length - end) * length) / 60)} to ${Math.round(((steps.length - end + ROW) * length) / 60)}`), ...cells));
    }
    $('flow-table').tBodies[0].replaceChildren(...rows);
  }
}
