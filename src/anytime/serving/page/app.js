// The page: two views of one model.

import { PromiseView } from "./promise.js";
import { RushView } from "./rush.js";
import { ask } from "./server.js";
import { TryView } from "./try.js";

const $ = (id) => document.getElementById(id);

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

const views = { try: new TryView(problem), rush: new RushView(problem), promise: new PromiseView(problem) };
const tabs = Object.keys(views).map((name) => $(`tab-${name}`));

function select(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  const view = views[tab.getAttribute("aria-controls")];
  if (view.model) view.draw();
}

tabs.forEach((tab) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const shown = tabs.filter((each) => !each.hidden);
    const step = event.key === "ArrowRight" ? 1 : shown.length - 1;
    const next = shown[(shown.indexOf(tab) + step) % shown.length];
    select(next);
    next.focus();
  });
});

async function main() {
  $("origin").textContent = location.origin;
  try {
    const { models, rush } = await (await ask("/models")).json();
    $("tab-rush").hidden = !rush;
    $("model").replaceChildren(...models.map(({ name }) => new Option(name, name)));
    $("model-choice").hidden = models.length < 2;
    const use = () => {
      const model = models.find(({ name }) => name === $("model").value);
      for (const view of Object.values(views)) view.use(model);
    };
    $("model").addEventListener("change", use);
    use();
  } catch (error) {
    problem(error.message);
  }
}

main();
