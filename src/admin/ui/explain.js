// "Where would this go?": what the router says to a body, as a story and as figures.

import { ask, part } from './api.js';
import { $, el, reasonTag } from './dom.js';
import { percent, seconds, whole } from './format.js';

const IDENTIFIER = 'x-amzn-sagemaker-prefix-aware-id';

const OUTCOMES = {
  sent: (said) => (said.replica ? `It goes to ${said.replica}.` : 'It goes to one of several.'),
  waits: () => 'It waits for a replica with room.',
  held: (said) => `It is held back for a moment, for ${said.replica}.`,
  refused: (said) => `It is refused: ${said.error}.`,
  answered: () => 'The router answers it itself.',
};

/** Names a model that is served in the body that stands there, while nobody has changed it. */
export function propose(model) {
  if ($('explain-body').value === $('explain-body').defaultValue) {
    $('explain-body').value = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] });
    $('explain-body').defaultValue = $('explain-body').value;
  }
}

export function begin(onError) {
  $('explain').addEventListener('submit', async (event) => {
    event.preventDefault();
    const identifier = $('explain-identifier').value;
    const headers = identifier ? { [IDENTIFIER]: identifier } : {};
    try {
      const said = await ask('POST', `explain?path=${part($('explain-path').value)}`, $('explain-body').value, headers);
      $('explain-answer').replaceChildren(...answer(said));
    } catch (error) {
      $('explain-answer').replaceChildren(el('p', { class: 'bad' }, error.message));
      onError(error);
    }
  });
}

function answer(said) {
  const parts = [
    el('p', { class: 'outcome' }, OUTCOMES[said.outcome](said)),
    said.reason ? el('p', {}, 'Reason: ', reasonTag(said.reason), ' · strategy: ', said.strategy) : null,
    isJson($('explain-body').value) ? null : el('p', { class: 'bad' }, 'The body is not JSON: it is placed by its first bytes as they are.'),
    el('ol', {}, ...said.steps.map((step) => el('li', {}, step))),
  ];
  if (said.candidates.length) {
    parts.push(table('Replicas, in the order in which they are looked at', ['Replica', 'State', 'In flight', 'Gate', 'Expected in cache', 'Cost', 'First token'],
      said.candidates.map((one) => [
        one.name,
        one.is_full ? `${one.state}, full` : one.state ?? 'leaving',
        one.threshold === null ? whole(one.outstanding) : `${whole(one.outstanding)} of ${whole(one.threshold)}`,
        one.gate ?? '–', percent(one.overlap), seconds(one.cost_seconds), seconds(one.first_token_seconds),
      ])));
  }
  if (said.boundaries.length) {
    parts.push(table('Places at which its key could end', ['Characters', 'Share of the last requests', 'Hot above', 'Key', 'Chosen'],
      said.boundaries.map((one) => [
        whole(one.depth), percent(one.share), one.limit === null || one.limit >= 1 ? '–' : percent(one.limit), one.key, one.is_chosen ? 'yes' : one.is_hot ? 'no: hot' : 'no',
      ])));
  }
  if (said.next.length) {
    parts.push(el('h3', {}, 'Were it to fail before its first byte'));
    parts.push(el('ol', {}, ...said.next.map((next) => el('li', {}, `${next.replica} (${next.reason})`))));
  }
  return parts.filter(Boolean);
}

function table(title, heads, rows) {
  const cells = (row) => row.map((text, at) => (at === 0 ? el('th', { scope: 'row' }, text) : el('td', {}, text)));
  const made = el('table', {}, el('caption', {}, title),
    el('thead', {}, el('tr', {}, ...heads.map((head) => el('th', { scope: 'col' }, head)))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...cells(row)))));
  return el('div', { class: 'scroll', role: 'group', 'aria-label': title, tabindex: '0' }, made);
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
