
"use strict";
// Search, filter and sort the list of features; without a script the whole list stands.
(() => {
  const list = document.getElementById("features");
  if (!list) return;
  const body = list.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({
    row,
    text: (row.cells[0].textContent + " " + row.cells[1].textContent).toLowerCase(),
  }));
  const search = document.getElementById("search");
  const choices = ["party", "state", "kind"].map((name) => [
    name, document.getElementById("by-" + name),
  ]).filter(([, box]) => box);
  const shown = document.getElementById("shown");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const { row, text } of rows) {
      const fits = words.every((word) => text.includes(word)) &&
        choices.every(([name, box]) => !box.value || row.dataset[name] === box.value);
      row.hidden = !fits;
      n += fits;
    }
    shown.textContent = `${n.toLocaleString("en")} of ${rows.length.toLocaleString("en")} features shown`;
  };
  search.addEventListener("input", filter);
  for (const [, box] of choices) box.addEventListener("change", filter);
  const heads = Array.from(list.tHead.rows[0].cells);
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = ({ row }) => row.cells[i].dataset.sort ?? row.cells[i].textContent;
      const order = new Intl.Collator("en", { numeric: true }).compare;
      const byNumber = rows.every(({ row }) => row.cells[i].dataset.sort !== undefined);
      rows.sort((a, b) => (down ? -1 : 1) *
        (byNumber ? key(a) - key(b) : order(key(a), key(b))));
      body.append(...rows.map(({ row }) => row));
    });
  });
  document.getElementById("controls").hidden = false;
  filter();
})();
