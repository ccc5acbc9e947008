"use strict";
(() => {
  const table = document.getElementById("overview");
  const body = table.tBodies[0];
  const rows = [...body.querySelectorAll("tr[data-case]")];
  const place = new Map(rows.map((row, i) => [row, i]));

  const key = (row, column) => {
    const text = row.cells[column].dataset.v ?? "";
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const order = next[head.getAttribute("aria-sort") ?? "none"];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (order !== "none") head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      rows.sort((a, b) => (order === "none" ? 0 : sign * compare(key(a, column), key(b, column)))
        || place.get(a) - place.get(b));
      body.append(...rows);
    });
  });

  const filter = document.getElementById("filter");
  const chips = [...document.querySelectorAll(".chip")];
  const texts = new Map(rows.map((row) => [
    row, `${row.textContent} ${document.getElementById(row.dataset.case).textContent}`.toLowerCase(),
  ]));
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(chips.filter((chip) => chip.getAttribute("aria-pressed") === "false")
      .map((chip) => chip.dataset.verdict));
    let shown = 0;
    for (const row of rows) {
      const wanted = !off.has(row.dataset.verdict) && words.every((word) => texts.get(row).includes(word));
      row.hidden = document.getElementById(row.dataset.case).hidden = !wanted;
      shown += wanted;
    }
    document.getElementById("shown").textContent = shown < rows.length ? `${shown} of ${rows.length} shown` : "";
  };
  filter.addEventListener("input", show);
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
      show();
    });
  }

  const write = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // no permission, or an old browser
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const done = await write(button.closest("details").querySelector("pre").textContent);
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1))?.closest(".case");
    if (target) target.open = true;
  };
  addEventListener("hashchange", open);
  table.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (link) document.getElementById(link.hash.slice(1)).open = true;
  });
  open();

  const tip = document.createElement("div"); // what a pointer sees of a title, for the keyboard and for touch
  tip.id = "tip";
  tip.role = "tooltip";
  tip.hidden = true;
  document.body.append(tip);
  const explain = (term) => {
    tip.hidden = !term;
    if (!term) return;
    tip.textContent = term.title;
    const place = term.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left, innerWidth - tip.offsetWidth - 4))}px`;
    const below = place.bottom + 6;
    tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : place.top - tip.offsetHeight - 6}px`;
  };
  document.addEventListener("focusin", (event) => explain(event.target.closest("[title]")));
  document.addEventListener("focusout", () => explain(null));
  addEventListener("scroll", () => { if (!tip.hidden) explain(document.activeElement.closest("[title]")); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open], .bulk)")];
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
})();
