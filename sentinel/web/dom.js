// Create and change elements. Text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Find the element with an id. */
export const byId = (id) => document.getElementById(id);

/** Create an element with a class and children, which are elements or text. */
export function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Create a button. */
export function button(text, name, act) {
  const element = make("button", name, text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

/** Create an element of a drawing with attributes and children. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Create a drawing of the sprite, hidden from screen readers: the text beside it has its meaning. */
export function shape(name) {
  return draw("svg", { class: "shape", "aria-hidden": "true" }, draw("use", { href: drawingOf(name) }));
}

/** Address a drawing; the states of known faults share one. */
function drawingOf(name) {
  return document.getElementById(`i-${name}`) ? `#i-${name}` : "#i-failed";
}

/** Change a drawing. */
export function reshape(drawing, name) {
  const wanted = drawingOf(name);
  const use = drawing.firstElementChild;
  if (use.getAttribute("href") !== wanted) use.setAttribute("href", wanted);
}

/** Set the text of an element if it differs: screen readers announce each change. */
export function setText(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Show or hide an element. */
export function show(element, visible) {
  if (element.hidden === Boolean(visible)) element.hidden = !visible;
}

/** Fill a description list with pairs; empty values are omitted. */
export function terms(list, pairs) {
  const wanted = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  while (list.children.length > wanted.length) list.lastElementChild.remove();
  wanted.forEach(([term, value], place) => {
    let row = list.children[place];
    if (!row) {
      row = make("div", "", make("dt"), make("dd"));
      list.append(row);
    }
    setText(row.firstElementChild, term);
    setText(row.lastElementChild, value);
  });
}

/** Fill the body of a table with rows of cells; a cell is a text, or has a text and a class. */
export function rows(table, wanted) {
  const body = table.tBodies[0];
  const labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, place) => {
    const row = body.rows[place] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, column) => {
      const { text, name = "" } = typeof cell === "object" && cell !== null ? cell : { text: cell };
      const element = row.cells[column] ?? row.insertCell();
      element.dataset.label = labels[column]; // shown where the table has no room for its head
      if (element.className !== name) element.className = name;
      setText(element, text);
    });
  });
}
