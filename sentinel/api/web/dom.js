// Makes and changes elements. Text is only ever set as text: what comes from outside is no markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return the element of this id. */
export const byId = (id) => document.getElementById(id);

/** Return a new element with a class and what is in it: elements, or text. */
export function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a new button that does something. */
export function button(text, name, act) {
  const element = make("button", name, text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

/** Return a new drawing of the sprite; it says nothing that words beside it do not. */
export function shape(name) {
  const drawing = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  drawing.setAttribute("class", "shape");
  drawing.setAttribute("aria-hidden", "true");
  drawing.append(use);
  reshape(drawing, name);
  return drawing;
}

/** Let a drawing be another one. */
export function reshape(drawing, name) {
  const wanted = `#i-${name}`;
  const use = drawing.firstElementChild;
  if (use.getAttribute("href") !== wanted) use.setAttribute("href", wanted);
}

/** Set the text of an element, if it is another: screen readers hear of each change. */
export function say(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Show or hide an element. */
export function show(element, so) {
  if (element.hidden === Boolean(so)) element.hidden = !so;
}

/** Fill a list of terms with these pairs; those without a value are left out. */
export function terms(list, pairs) {
  const wanted = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  while (list.children.length > wanted.length) list.lastElementChild.remove();
  wanted.forEach(([term, value], place) => {
    let row = list.children[place];
    if (!row) {
      row = make("div", "", make("dt"), make("dd"));
      list.append(row);
    }
    say(row.firstElementChild, term);
    say(row.lastElementChild, value);
  });
}
