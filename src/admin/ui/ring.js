// The ring as a picture: who owns which part. One replica can be picked out, by the list or by pointing at it.

import { $, el, say, set, svg } from './dom.js';
import { count, percent } from './format.js';

const [OUTER, INNER] = [100, 68];

export class Ring {
  /** `onPool()` is called when another pool is wanted. */
  constructor(onPool) {
    this.drawn = '';
    this.latest = null;
    this.pointed = null;
    $('ring-pool').addEventListener('change', onPool);
    $('ring-replica').addEventListener('change', () => this.pick());
  }

  get pool() {
    return $('ring-pool').value || 'all';
  }

  show(ring) {
    const drawn = JSON.stringify(ring);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.latest = ring;
    options($('ring-pool'), ring.pools.map((pool) => [pool, pool]), ring.pool);
    $('ring-pool-tools').hidden = ring.pools.length < 2;
    options($('ring-replica'), [['', 'all replicas'], ...ring.replicas.map((name) => [name, name])], $('ring-replica').value);
    this.paths = ring.replicas.map((name, at) => {
      // Neighbours in the list are far apart in colour.
      const path = svg('path', { d: arcs(ring.owners, at), fill: `hsl(${((at * 137.5) % 360).toFixed(0)} 55% ${45 + (at % 3) * 8}%)` });
      path.addEventListener('mouseenter', () => this.point(name));
      path.addEventListener('mouseleave', () => this.point(null));
      return path;
    });
    this.center = [svg('text', { y: -2 }), svg('text', { y: 16, class: 'small' })];
    $('ring').replaceChildren(...this.paths, ...this.center);
    this.pick();
  }

  /** Whom somebody points at, here or in the table; null: nobody. */
  point(name) {
    this.pointed = name;
    this.pick();
  }

  pick() {
    if (!this.latest) return;
    const { replicas, shares } = this.latest;
    const name = this.pointed ?? $('ring-replica').value;
    const at = replicas.indexOf(name);
    $('ring').classList.toggle('picked', at >= 0);
    this.paths.forEach((path, one) => path.classList.toggle('picked', one === at));
    const short = at < 0 ? '' : name.length > 16 ? `${name.slice(0, 15)}…` : name;
    say(this.center[0], at < 0 ? count(replicas.length, 'replica') : short);
    say(this.center[1], at < 0 ? '' : `owns ${percent(shares[at])}`);
    const order = replicas.map((_, one) => one).sort((one, other) => shares[other] - shares[one]);
    const told = order.slice(0, 8).map((one) => `${replicas[one]} ${percent(shares[one])}`).join(', ');
    const sentence = at >= 0 ? `${name} owns ${percent(shares[at])} of the ring.`
      : replicas.length ? `Shares of the ring: ${told}${replicas.length > 8 ? ', …' : ''}.` : 'The ring is empty.';
    say($('ring-said'), sentence);
    set($('ring'), 'aria-label', sentence);
  }
}

/** Choices of a list, changed only where they are others. */
function options(select, choices, chosen) {
  const drawn = JSON.stringify(choices);
  if (select.dataset.drawn !== drawn) {
    select.dataset.drawn = drawn;
    select.replaceChildren(...choices.map(([value, text]) => el('option', { value }, text)));
  }
  select.value = choices.some(([value]) => value === chosen) ? chosen : choices[0]?.[0] ?? '';
}

/** The parts of one owner, neighbours in one piece. */
function arcs(owners, owner) {
  const parts = owners.length;
  const at = (place, radius) => {
    const angle = (place / parts) * 2 * Math.PI - Math.PI / 2;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  };
  let path = '';
  for (let begin = 0; begin < parts; begin++) {
    if (owners[begin] !== owner || (begin > 0 && owners[begin - 1] === owner)) continue;
    let end = begin;
    while (end < parts && owners[end] === owner) end++;
    // A circle in one piece would begin where it ends, and be nothing.
    for (const [from, to] of end - begin === parts ? [[0, parts / 2], [parts / 2, parts]] : [[begin, end]]) {
      const large = (to - from) * 2 > parts ? 1 : 0;
      path += `M${at(from, OUTER)}A${OUTER} ${OUTER} 0 ${large} 1 ${at(to, OUTER)}L${at(to, INNER)}A${INNER} ${INNER} 0 ${large} 0 ${at(from, INNER)}Z`;
    }
  }
  return path;
}
