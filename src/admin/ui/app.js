// The live page: asks the router now and then while somebody looks, and shows what it says.

import { ApiError, ask, part, setToken } from './api.js';
import { Decisions, HotKeys } from './decisions.js';
import { $, say } from './dom.js';
import { confirm } from './drain.js';
import { begin as beginExplaining, propose } from './explain.js';
import { Fleet, fullness } from './fleet.js';
import { Flow } from './flow.js';
import { count, percent, seconds, span, whole } from './format.js';
import { Ring } from './ring.js';

/** Between two rounds; at most so much after errors; ring and hot keys at least so often; all in milliseconds. */
const [PAUSE, MOST_PAUSE, SELDOM] = [2000, 5000, 10000];

const ring = new Ring(() => (seldomDue = 0));
const fleet = new Fleet((replica, drain) => confirm(replica, drain, fleet.latest, ring.latest, wake), (name) => ring.point(name));
const [flow, decisions, hotKeys] = [new Flow(), new Decisions(), new HotKeys()];

/** When the router was started, and when it last answered. */
let started = null;
let answered = null;
let errors = 0;
let membership = '';
let seldomDue = 0;
let before = null;
let timer = null;
let busy = false;

/** One round; then the next one is planned. */
async function round() {
  timer = null;
  // Nobody looks: nothing is asked until somebody does.
  if (document.hidden || busy) return;
  busy = true;
  try {
    await look();
    errors = 0;
    answered = Date.now();
    works();
  } catch (error) {
    errors += 1;
    fails(error);
  } finally {
    busy = false;
  }
  // Who asks for a token waits for it.
  if ($('token').hidden) timer = setTimeout(round, errors ? Math.min(MOST_PAUSE, PAUSE * 1.5 ** (errors - 1)) : PAUSE);
}

/** Another round, now. */
function wake() {
  seldomDue = 0;
  if (timer !== null) clearTimeout(timer);
  round();
}

async function look() {
  const overview = await ask('GET', 'overview');
  if (overview.started !== started) {
    // Another process, or the first one: its numbers begin anew.
    if (started !== null && Math.abs(overview.started - started) > 1) {
      decisions.forget();
      before = null;
      seldomDue = 0;
    }
    started = overview.started;
  }
  const [replicas, latest] = await Promise.all([ask('GET', 'fleet'), ask('GET', `decisions?limit=${decisions.wanted}&after=${decisions.last}`)]);
  const members = replicas.replicas.map((replica) => `${replica.name} ${replica.weight}`).join('\n');
  if (members !== membership || Date.now() >= seldomDue) {
    const [owners, hot] = await Promise.all([askRing(), ask('GET', 'hot-keys')]);
    membership = members;
    const served = replicas.replicas.find((replica) => replica.models.length);
    if (served) propose(served.models[0]);
    seldomDue = Date.now() + SELDOM;
    ring.show(owners);
    hotKeys.show(hot);
  }
  fleet.show(replicas);
  flow.show(overview.flow, overview.counted);
  decisions.add(latest);
  tell(overview, replicas);
}

/** The ring of the chosen pool, or of all where that has gone. */
async function askRing() {
  try {
    return await ask('GET', `ring?pool=${part(ring.pool)}`);
  } catch (error) {
    if (error.status !== 404) throw error;
    return ask('GET', 'ring');
  }
}

/** What is seen at a glance. */
function tell(overview, { replicas }) {
  say($('about'), `${overview.version} · ${overview.strategy} · up for ${span(overview.now - overview.started)}`);
  const up = replicas.filter((replica) => replica.state === 'up').length;
  const others = replicas.filter((replica) => replica.state !== 'up');
  say($('tile-state'), overview.draining ? 'It is stopping' : !up ? 'No replica is up' : others.length ? 'Yes, not all replicas' : 'Yes');
  const named = others.slice(0, 4).map((replica) => `${replica.name} is ${replica.state ?? 'leaving'}`).join(', ');
  say($('tile-state-more'), `${up} of ${count(replicas.length, 'replica')} up${named ? `; ${named}` : ''}${others.length > 4 ? ', …' : ''}`);

  const { requests, queue, savings } = overview;
  say($('tile-requests'), overview.counted ? whole(requests.total) : 'Not counted');
  const perSecond = before && overview.now > before.now ? (requests.total - before.requests.total) / (overview.now - before.now) : null;
  before = overview;
  const rate = !overview.counted ? 'metrics: false in the configuration; ' : perSecond === null ? '' : `${perSecond.toFixed(perSecond < 10 ? 1 : 0)} per second, `;
  const bad = requests.by_status['5xx'];
  const waiting = queue.requests ? `, ${whole(queue.requests)} wait` : '';
  say($('tile-requests-more'), `${rate}${whole(requests.in_flight)} in flight${waiting}${bad ? `, ${whole(bad)} ended with 5xx` : ''}`);

  say($('tile-saved'), savings.source ? percent(savings.share) : 'Not known');
  say($('tile-saved-more'), savings.source ? `${whole(savings.cached_tokens)} of ${whole(savings.prompt_tokens)} tokens of prompts` : 'nobody tells of cached tokens; see below');
  say($('saved-text'), savings.text);

  const busiest = replicas.reduce((most, replica) => (!most || heat(replica) > heat(most) ? replica : most), null);
  const idle = !busiest || (busiest.outstanding === 0 && busiest.recent.requests === 0);
  say($('tile-busiest'), idle ? 'None' : busiest.name);
  const level = idle ? null : fullness(busiest);
  say($('tile-busiest-more'), idle ? 'nothing was sent yet'
    : `${whole(busiest.outstanding)} in flight${level === null ? '' : `, ${percent(level)} of its threshold`}; ${percent(busiest.recent.share)} of the last requests`);

  const last = decisions.newest;
  say($('tile-last'), last ? last.why : decisions.kept === 0 ? 'None is kept (recent_decisions: 0).' : 'There was none yet.');
  say($('tile-last-more'), last ? `${last.method} ${last.route} · ${last.reason} · status ${last.status} · first byte ${seconds(last.first_byte)} · ${last.request_id}` : '');
}

/** What makes a replica the busiest: how near to its threshold it is, then what it has, then what it had. */
const heat = (replica) => (fullness(replica) ?? 0) * 1e6 + replica.outstanding * 10 + replica.recent.share;

function works() {
  $('banner').hidden = true;
  document.body.classList.remove('stale');
  say($('connection'), 'Live');
}

function fails(error) {
  document.body.classList.add('stale');
  if (!(error instanceof ApiError)) {
    say($('banner'), `This page has a fault: ${error.message}`);
    $('banner').hidden = false;
    console.error(error);
    return;
  }
  if (error.status === 401) {
    say($('token-why'), error.message);
    $('token').hidden = false;
    say($('connection'), 'Waiting for the token');
    $('token-value').focus();
    return;
  }
  const since = answered === null ? '' : ` The figures below are ${span((Date.now() - answered) / 1000)} old.`;
  const what = error.status ? `The router refuses: ${error.message}` : `The router does not answer: ${error.message}.`;
  say($('banner'), `${what}${since} Trying again by itself.`);
  $('banner').hidden = false;
  say($('connection'), 'Not connected');
}

$('token').addEventListener('submit', (event) => {
  event.preventDefault();
  setToken($('token-value').value);
  $('token-value').value = '';
  $('token').hidden = true;
  wake();
});
beginExplaining((error) => error.status === 401 && fails(error));
document.addEventListener('visibilitychange', () => !document.hidden && wake());
round();
