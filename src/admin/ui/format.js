// Numbers and times as people read them.

const NOTHING = '–';

export const whole = (number) => (number === null || number === undefined ? NOTHING : number.toLocaleString('en-US'));

/** 0.1234 is 12 %. */
export function percent(share) {
  if (share === null || share === undefined) return NOTHING;
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export function seconds(time) {
  if (time === null || time === undefined) return NOTHING;
  if (time < 0.001) return `${(time * 1e6).toFixed(0)} µs`;
  if (time < 0.0995) return `${(time * 1000).toFixed(1)} ms`;
  if (time < 1) return `${(time * 1000).toFixed(0)} ms`;
  return `${time.toFixed(time < 10 ? 2 : 1)} s`;
}

/** 75 s is 1 min 15 s. */
export function span(time) {
  const all = Math.max(0, Math.round(time));
  const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${all % 60} s` : `${all} s`;
}

export const clock = (time) => new Date(time * 1000).toLocaleTimeString('en-GB');

/** count(1, 'replica') is "1 replica". */
export const count = (number, of) => `${whole(number)} ${of}${number === 1 ? '' : 's'}`;
