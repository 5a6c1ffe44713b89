// Drain and undrain, asked twice: what it means is said before it is done.

import { ask, part } from './api.js';
import { $, el, say } from './dom.js';
import { count, percent } from './format.js';

/** What happens if that replica is drained, or is no longer, in sentences. */
export function consequences(replica, drain, fleet, ring) {
  const { name } = replica;
  if (!drain) {
    return [
      `${name} gets new requests again, as soon as it is up; it is ${replica.health ?? 'leaving'} now.`,
      'Keys that belong to it come home.',
    ];
  }
  const others = fleet.replicas.filter((one) => one.name !== name && one.state === 'up').length;
  const place = ring?.replicas.indexOf(name) ?? -1;
  const owned = place >= 0 && ring.pool === 'all' ? ` It owns ${percent(ring.shares[place])} of the ring.` : '';
  const sentences = [
    `${name} gets no new requests until you undrain it or the router restarts.`,
    replica.outstanding ? `${count(replica.outstanding, 'request')} in flight there may end; nothing is cut off.` : 'It has nothing in flight.',
    `Its keys go to the next replica in their order, each with a first prompt to compute there.${owned}`,
  ];
  if (!others) sentences.push('No other replica is up: with it drained, requests are answered with 503.');
  else sentences.push(`${count(others, 'other replica')} ${others === 1 ? 'is' : 'are'} up and take its share.`);
  return sentences;
}

/** Asks, and does it where the answer is yes; then `onDone()`. */
export function confirm(replica, drain, fleet, ring, onDone) {
  const verb = drain ? 'Drain' : 'Undrain';
  say($('confirm-title'), `${verb} ${replica.name}?`);
  $('confirm-text').replaceChildren(...consequences(replica, drain, fleet, ring).map((sentence) => el('li', {}, sentence)));
  say($('confirm-error'), '');
  say($('confirm-do'), `${verb} ${replica.name}`);
  $('confirm-do').onclick = async () => {
    $('confirm-do').disabled = true;
    try {
      await ask('POST', `replicas/${part(replica.name)}/${verb.toLowerCase()}`);
      $('confirm').close();
      onDone();
    } catch (error) {
      say($('confirm-error'), `It was not done: ${error.message}`);
    } finally {
      $('confirm-do').disabled = false;
    }
  };
  $('confirm').showModal();
}
