"use strict";
// Fetch this page every second and take over what changed: the server alone writes it.
(() => {
  const adopt = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.nodeType !== Node.ELEMENT_NODE) {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
    const [mine, theirs] = [[...old.childNodes], [...fresh.childNodes]];
    mine.slice(theirs.length).forEach((node) => node.remove());
    theirs.forEach((node, i) => {
      if (i < mine.length) adopt(mine[i], node);
      else old.append(document.importNode(node, true));
    });
  };
  const look = async () => {
    try {
      const reply = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!reply.ok) throw new Error(reply.statusText);
      const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
      adopt(document.querySelector("main"), fresh.querySelector("main"));
      document.title = fresh.title;
      document.getElementById("gone").hidden = true;
    } catch {
      document.getElementById("gone").hidden = false;
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
})();
