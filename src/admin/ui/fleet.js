// The replicas as a table: one row for each that stays the same while its figures change.

import { $, el, Keyed, say, set } from './dom.js';
import { count, percent, seconds, whole } from './format.js';

const ORDER = { down: 0, suspect: 1, unknown: 2, draining: 3, up: 4 };

const COLUMNS = [
  { name: 'Replica', of: (replica) => replica.name },
  { name: 'State', of: (replica) => ORDER[replica.state] ?? 5 },
  { name: 'In flight', of: (replica) => replica.outstanding, from: 'high' },
  { name: 'Share', of: (replica) => replica.recent.share, from: 'high' },
  { name: 'Cached', of: (replica) => replica.recent.cached_share ?? -1, from: 'high' },
  { name: 'First byte', of: (replica) => replica.recent.first_byte_p50 ?? -1, from: 'high' },
  { name: 'Engine', of: (replica) => replica.engine?.waiting ?? -1, from: 'high' },
  { name: 'Weight', of: (replica) => replica.weight, from: 'high' },
];

/** How near to its threshold a replica is, 0 to 1; null where it has none. */
export const fullness = (replica) => (replica.threshold ? Math.min(1, replica.outstanding / replica.threshold) : null);

export class Fleet {
  /** `onDrain(replica, drain)` is asked for; `onPick(name)` tells who is looked at. */
  constructor(onDrain, onPick) {
    this.onDrain = onDrain;
    this.onPick = onPick;
    this.latest = { replicas: [], recent_requests: 0 };
    this.sorted = { column: null, descending: false };
    this.rows = new Keyed($('fleet').tBodies[0], (replica) => this.row(replica.name));
    this.heads = COLUMNS.map((column) => this.head(column));
    $('fleet').tHead.rows[0].append(...this.heads, el('th', { scope: 'col' }, 'Action'));
    $('fleet-filter').addEventListener('input', () => this.draw());
  }

  head(column) {
    const button = el('button', { type: 'button' }, column.name);
    button.addEventListener('click', () => {
      const again = this.sorted.column === column;
      this.sorted = { column, descending: again ? !this.sorted.descending : column.from === 'high' };
      this.draw();
    });
    return el('th', { scope: 'col' }, button);
  }

  row(name) {
    const made = { replica: null };
    const cell = (label, ...children) => el('td', { 'data-label': label, class: 'number' }, ...children);
    made.address = el('span', { class: 'sub' });
    made.state = el('span', { class: 'state' });
    made.stateMore = el('span', { class: 'sub' });
    made.outstanding = el('span', { class: 'outstanding' });
    made.level = el('span');
    made.bar = el('span', { class: 'bar', 'aria-hidden': 'true' }, made.level);
    made.share = el('span', { class: 'share' });
    made.requests = el('span', { class: 'sub' });
    made.cached = el('span', { class: 'cached' });
    made.first = el('span', { class: 'first-byte' });
    made.firstMore = el('span', { class: 'sub' });
    made.engine = el('span');
    made.engineMore = el('span', { class: 'sub' });
    made.weight = el('span', { class: 'weight' });
    made.weightMore = el('span', { class: 'sub' });
    made.action = el('button', { type: 'button' });
    made.action.addEventListener('click', () => this.onDrain(made.replica, !made.replica.draining));
    made.element = el('tr', {},
      el('th', { scope: 'row', 'data-label': 'Replica' }, el('span', {}, name), made.address),
      cell('State', made.state, made.stateMore),
      cell('In flight', made.outstanding, made.bar),
      cell('Share', made.share, made.requests),
      cell('Cached', made.cached),
      cell('First byte', made.first, made.firstMore),
      cell('Engine', made.engine, made.engineMore),
      cell('Weight', made.weight, made.weightMore),
      cell('Action', made.action));
    made.element.addEventListener('mouseenter', () => this.onPick(name));
    made.element.addEventListener('mouseleave', () => this.onPick(null));
    set(made.element, 'data-replica', name);
    return made;
  }

  show(fleet) {
    this.latest = fleet;
    this.draw();
  }

  draw() {
    const { replicas, recent_requests: recent } = this.latest;
    const wanted = $('fleet-filter').value.toLowerCase();
    const shown = replicas.filter((replica) => replica.name.toLowerCase().includes(wanted));
    const { column, descending } = this.sorted;
    if (column) {
      shown.sort((one, other) => {
        const [a, b] = [column.of(one), column.of(other)];
        const way = a < b ? -1 : a > b ? 1 : 0;
        return descending ? -way : way;
      });
    }
    COLUMNS.forEach((one, at) => set(this.heads[at], 'aria-sort', one === column ? (descending ? 'descending' : 'ascending') : null));
    say($('fleet-count'), shown.length === replicas.length ? count(replicas.length, 'replica') : `${shown.length} of ${count(replicas.length, 'replica')}`);
    say($('fleet-caption'), `Share, cached tokens and first byte are of the last ${count(recent, 'request')} that went to a replica.`);
    this.rows.show(shown, (replica) => replica.name, update);
  }
}

function update(made, replica) {
  made.replica = replica;
  say(made.address, replica.models.length ? `${replica.address} · ${replica.models.join(', ')}` : replica.address);
  const state = replica.state ?? 'leaving';
  say(made.state, state);
  set(made.state, 'data-state', state);
  const more = replica.draining ? `by the ${replica.drained_by === 'api' ? 'API' : 'configuration'}; it is ${replica.health ?? 'leaving'}` : '';
  say(made.stateMore, more);
  say(made.outstanding, replica.threshold === null ? whole(replica.outstanding) : `${whole(replica.outstanding)} of ${whole(replica.threshold)}`);
  const full = fullness(replica);
  made.bar.hidden = full === null;
  made.level.style.transform = `scaleX(${full ?? 0})`;
  made.bar.classList.toggle('full', full === 1);
  say(made.share, percent(replica.recent.share));
  const failed = replica.recent.failed ? `, ${whole(replica.recent.failed)} failed` : '';
  say(made.requests, `${count(replica.recent.requests, 'request')}${failed}`);
  say(made.cached, percent(replica.recent.cached_share));
  say(made.first, seconds(replica.recent.first_byte_p50));
  say(made.firstMore, replica.recent.first_byte_p90 === null ? '' : `90 % within ${seconds(replica.recent.first_byte_p90)}`);
  const { engine } = replica;
  say(made.engine, engine ? `${whole(engine.running)} run, ${whole(engine.waiting)} wait` : 'says nothing');
  say(made.engineMore, engine ? engineSays(engine) : '');
  say(made.weight, whole(replica.weight));
  say(made.weightMore, replica.weight === replica.configured_weight ? '' : `configured: ${whole(replica.configured_weight)}`);
  say(made.action, replica.draining ? 'Undrain' : 'Drain');
  set(made.action, 'aria-label', `${replica.draining ? 'Undrain' : 'Drain'} ${replica.name}`);
  made.action.disabled = replica.drained_by === 'configuration';
}

function engineSays(engine) {
  const parts = [`KV cache ${percent(engine.kv_cache_usage)}`];
  if (engine.prefix_caching === false) parts.push('prefix caching is off');
  else if (engine.prefix_hit_share !== null) parts.push(`${percent(engine.prefix_hit_share)} found`);
  if (engine.age_seconds > 30) parts.push(`${engine.age_seconds.toFixed(0)} s old`);
  return parts.join(', ');
}
