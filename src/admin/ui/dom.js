// A few words for making and changing elements. Whatever comes from outside becomes text, never markup.

const SVG = 'http://www.w3.org/2000/svg';

export const $ = (id) => document.getElementById(id);

/** An element with these attributes and children; a child that is no element is text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Changes a text where it is another one: what stays costs no layout, and keeps what a reader has selected. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Sets an attribute where it is another one; null takes it away. */
export function set(element, name, value) {
  if (value === null || value === undefined) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/** The word and colour of a reason. */
export function reasonTag(reason) {
  return el('span', { class: 'reason' }, el('span', { class: `swatch back-${reason}`, 'aria-hidden': 'true' }), reason);
}

/**
 * Elements that stand for keyed things and outlive updates. `make(key)` makes one, with whatever it needs to be changed; it has an `element`.
 */
export class Keyed {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.known = new Map();
  }

  /** Shows these things in this order: `keyOf(thing)` names each, `update(made, thing)` changes it. */
  show(things, keyOf, update) {
    const present = new Set();
    let place = this.parent.firstElementChild;
    for (const thing of things) {
      const key = keyOf(thing);
      present.add(key);
      let made = this.known.get(key);
      if (!made) this.known.set(key, (made = this.make(thing)));
      update(made, thing);
      if (made.element === place) place = place.nextElementSibling;
      else this.parent.insertBefore(made.element, place);
    }
    for (const [key, made] of this.known) {
      if (!present.has(key)) {
        made.element.remove();
        this.known.delete(key);
      }
    }
  }
}
