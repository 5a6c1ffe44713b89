// The last requests, each with where it went and why; and the keys that many of them have.

import { $, el, Keyed, reasonTag, say } from './dom.js';
import { clock, count, percent, seconds, whole } from './format.js';

/** So many are remembered here, and so many shown. */
const [KEPT, SHOWN] = [512, 50];

export class Decisions {
  constructor() {
    this.forget();
    this.paused = false;
    this.rows = new Keyed($('decisions').tBodies[0], row);
    $('decisions-filter').addEventListener('input', () => this.draw());
    $('decisions-pause').addEventListener('click', () => {
      this.paused = !this.paused;
      $('decisions-pause').setAttribute('aria-pressed', this.paused);
      say($('decisions-pause'), this.paused ? 'Go on' : 'Pause');
      this.draw();
    });
  }

  /** As for a router that has just started. */
  forget() {
    this.all = [];
    this.last = 0;
    this.kept = null;
  }

  /** The newest; undefined where there is none. */
  get newest() {
    return this.all[0];
  }

  /** How many new ones are worth asking for: more than are shown only where some are searched for. */
  get wanted() {
    return $('decisions-filter').value ? KEPT : SHOWN;
  }

  add({ kept, last, decisions }) {
    this.kept = kept;
    this.last = last;
    this.all = [...decisions, ...this.all].slice(0, KEPT);
    if (!this.paused) this.draw();
  }

  draw() {
    const wanted = $('decisions-filter').value.toLowerCase();
    const fits = (one) => [one.request_id, one.replica, one.model, one.reason, one.error].some((text) => text?.toLowerCase().includes(wanted));
    const all = wanted ? this.all.filter(fits) : this.all;
    const paused = this.paused ? ' Paused: new ones are not shown.' : '';
    say($('decisions-caption'), this.kept === 0
      ? 'None are kept: the configuration has recent_decisions: 0.'
      : `The newest ${whole(Math.min(SHOWN, all.length))} of ${count(all.length, 'request')}${wanted ? ' that fit' : ' known here'}.${paused}`);
    this.rows.show(all.slice(0, SHOWN), (one) => one.id, () => {});
  }
}

/** A decision does not change, so its row is made once. */
function row(one) {
  const cell = (label, ...children) => el('td', { 'data-label': label }, ...children);
  const sub = (text) => (text ? el('span', { class: 'sub' }, text) : null);
  const status = one.error ? `${one.status} ${one.error}` : one.status >= 400 ? String(one.status) : null;
  const tries = one.tries > 1 ? `${count(one.tries, 'try').replace('trys', 'tries')}` : null;
  const cached = one.cached_tokens === null ? '–' : percent(one.prompt_tokens ? one.cached_tokens / one.prompt_tokens : 0);
  const element = el('tr', { 'data-id': one.id },
    el('th', { scope: 'row', 'data-label': 'Ended', class: 'number' }, el('span', {}, clock(one.time))),
    cell('Request', el('span', {}, `${one.method} ${one.route}`), sub(`model ${one.model} · ${one.request_id}`)),
    cell('Went to', el('span', { class: 'name' }, one.replica ?? '–'), status ? el('span', { class: 'sub bad' }, status) : null, sub(tries)),
    cell('Reason', reasonTag(one.reason)),
    cell('Why', el('span', {}, one.why), sub(one.queued === null ? null : `It waited ${seconds(one.queued)} first.`)),
    cell('First byte', el('span', {}, seconds(one.first_byte)), sub(`whole: ${seconds(one.duration)}`)),
    cell('Cached', el('span', {}, cached), sub(one.prompt_tokens === null ? null : `of ${whole(one.prompt_tokens)} tokens`)));
  return { element };
}

export class HotKeys {
  constructor() {
    this.rows = new Keyed($('keys').tBodies[0], () => {
      const made = { key: el('code'), share: el('td'), home: el('td'), pool: el('td') };
      made.element = el('tr', {}, el('th', { scope: 'row' }, made.key), made.share, made.home, made.pool);
      return made;
    });
  }

  show({ pools }) {
    const all = pools.flatMap((pool) => pool.keys.map((key) => ({ ...key, pool: pool.pool, replicas: pool.replicas })));
    const hot = all.filter((one) => one.replicas > 1 && one.share > 1 / one.replicas);
    say($('keys-caption'), !all.length ? 'No key has enough of the last requests to be shown, or the strategy does not count them.'
      : hot.length ? `${count(hot.length, 'key')} alone ${hot.length === 1 ? 'is' : 'are'} more than one replica's share.`
      : 'None of them alone is more than one replica\'s share.');
    this.rows.show(all.slice(0, 20), (one) => `${one.pool}\n${one.key}`, (made, one) => {
      say(made.key, one.key);
      say(made.share, percent(one.share));
      say(made.home, one.home ?? '–');
      say(made.pool, one.pool);
    });
  }
}
