// The first view: one image, one deadline, the answer exit by exit.

import { color, drawCurve, percent } from "./charts.js";
import { ask, events } from "./server.js";

const $ = (id) => document.getElementById(id);
const REPLAY = 1800;  // milliseconds that slow motion takes

export class TryView {
  constructor(problem) {
    this.problem = problem;
    this.model = null;
    this.image = null;  // what is sent
    this.truth = null;  // its class, if it is a sample
    this.answers = [];
    this.run = 0;
    $("deadline").addEventListener("input", () => this.showDeadline());
    $("deadline").addEventListener("change", () => this.start());
    $("again").addEventListener("click", () => this.start());
    $("exit").addEventListener("input", () => this.look(Number($("exit").value)));
    $("file").addEventListener("change", () => $("file").files[0] && this.take($("file").files[0]));
    for (const name of ["dragover", "dragleave", "drop"]) $("drop").addEventListener(name, (event) => this.drag(event));
    document.addEventListener("paste", (event) => event.clipboardData.files[0] && this.take(event.clipboardData.files[0]));
    window.addEventListener("resize", () => this.model && this.draw());
    $("slow").checked = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  // From 0.5 ms to 500 ms on a logarithmic scale.
  get deadline() { return 0.5 * 1000 ** (Number($("deadline").value) / 100); }

  showDeadline() {
    const text = milliseconds(this.deadline);
    $("deadline-text").value = text;
    $("deadline").setAttribute("aria-valuetext", text);
  }

  use(model) {
    this.model = model;
    this.run += 1;
    this.answers = [];
    $("exit").max = model.exits - 1;
    $("exit").disabled = true;
    $("exit-text").value = "–";
    $("curve-note").textContent = model.accuracy ? "on test images" : "accuracy was not measured";
    $("bars").replaceChildren();
    this.showDeadline();
    this.draw();
    this.showSamples();
    if (!model.images) this.problem("This model does not take images: use /v2/models/… or JSON.");
    else if (model.samples.length) $("samples").firstChild.click();
    else if (this.image) this.start();
  }

  showSamples() {
    const buttons = this.model.samples.map((file) => {
      const truth = file.replace(/^\d+-/, "").replace(/\.\w+$/, "");
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-label", truth);
      button.setAttribute("aria-pressed", "false");
      const image = document.createElement("img");
      image.src = `/page/${file}`;
      image.alt = "";
      button.append(image);
      button.addEventListener("click", async () => {
        for (const other of $("samples").children) other.setAttribute("aria-pressed", String(other === button));
        try {
          const content = await (await ask(`/page/${file}`)).blob();
          this.show(content, truth, true);
        } catch (error) { this.problem(error.message); }
      });
      return button;
    });
    $("samples").replaceChildren(...buttons);
    $("samples").hidden = !buttons.length;
  }

  drag(event) {
    event.preventDefault();
    $("drop").classList.toggle("over", event.type === "dragover");
    if (event.type === "drop" && event.dataTransfer.files[0]) this.take(event.dataTransfer.files[0]);
  }

  // An image from the user: made small here, since a photo would take longer to decode than the network to answer.
  async take(file) {
    for (const button of $("samples").children) button.setAttribute("aria-pressed", "false");
    try {
      const bitmap = await createImageBitmap(file);
      const side = 4 * Math.max(...this.model.shape.slice(1));
      const scale = Math.min(1, side / Math.min(bitmap.width, bitmap.height));
      const canvas = document.createElement("canvas");
      canvas.width = Math.max(1, Math.round(bitmap.width * scale));
      canvas.height = Math.max(1, Math.round(bitmap.height * scale));
      canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
      const small = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
      this.show(small, null, false, file);
    } catch {
      this.problem(`${file.name} is not an image that this browser can read.`);
    }
  }

  show(content, truth, tiny, picture = content) {
    this.image = content;
    this.truth = truth;
    URL.revokeObjectURL($("preview").src);
    $("preview").src = URL.createObjectURL(picture);
    $("preview").alt = truth ? `Test image: ${truth}` : "Your image";
    $("preview").classList.toggle("tiny", tiny);
    $("preview").hidden = false;
    $("invitation").hidden = true;
    this.start();
  }

  // Ask once; replay what came at a pace that one can follow.
  async start() {
    if (!this.image || !this.model) return;
    const run = this.run += 1;
    const [deadline, slow] = [this.deadline, $("slow").checked];
    this.problem("");
    $("again").disabled = false;
    const answers = [];
    const path = `/stream?deadline=${Math.round(1000 * deadline)}us&model=${encodeURIComponent(this.model.name)}`;
    try {
      for await (const { name, data } of events(path, { body: this.image })) {
        if (run !== this.run) return;
        if (name === "error") throw new Error(data.error);
        if (name === "exit") answers.push(data);
        if (name === "answer" && !answers.some((answer) => answer.exit === data.exit)) answers.push(data);
      }
    } catch (error) {
      if (run === this.run) this.fail(error.message, deadline);
      return;
    }
    if (run !== this.run || !answers.length) return;
    const last = answers.at(-1).seconds * 1000;
    const factor = slow ? REPLAY / last : 1;
    $("pace").textContent = slow ? `${Math.round(factor)} times slower than it was` : "";
    this.answers = answers;
    for (const answer of answers) {
      if (slow) await this.wait(answer, answers, factor);
      if (run !== this.run) return;
      if (slow || answer === answers.at(-1)) this.paint(answer);
    }
    this.finish(deadline);
  }

  wait(answer, answers, factor) {
    const before = answers[answers.indexOf(answer) - 1]?.seconds ?? 0;
    return new Promise((resolve) => setTimeout(resolve, 1000 * (answer.seconds - before) * factor));
  }

  fail(reason, deadline) {
    $("class").value = "–";
    $("truth").textContent = "";
    $("bars").replaceChildren();
    $("exit").disabled = true;
    $("late").textContent = "";
    $("summary").textContent = `No answer within ${milliseconds(deadline)}: ${reason}`;
    this.answers = [];
    this.draw();
  }

  finish(deadline) {
    const answer = this.answers.at(-1);
    const why = answer.complete ? "the whole network ran" : `stopped by the deadline of ${milliseconds(deadline)}`;
    $("summary").textContent = `${percent(answer.probability, 1)} sure, exit ${answer.exit + 1} of ${answer.exits} `
      + `after ${milliseconds(1000 * answer.seconds)}; ${why}.`;
    $("late").textContent = lateness(answer, deadline);
    $("exit").disabled = false;
  }

  look(exit) {
    const found = this.answers.find((answer) => answer.exit === exit) ?? this.answers.at(-1);
    if (found) this.paint(found);
  }

  // Show one exit's answer.
  paint(answer) {
    $("class").value = answer.class;
    $("truth").textContent = this.truth === null ? "" : answer.class === this.truth ? "✓ right" : `✗ it is: ${this.truth}`;
    $("truth").className = answer.class === this.truth ? "right" : "wrong";
    $("exit").value = answer.exit;
    $("exit-text").value = `${answer.exit + 1} of ${answer.exits}, ${milliseconds(1000 * answer.seconds)}`;
    $("exit").setAttribute("aria-valuetext", `exit ${answer.exit + 1}: ${answer.class}`);
    const shade = color(answer.exit, answer.exits);
    while ($("bars").children.length < answer.top.length) $("bars").append(bar());
    [...$("bars").children].forEach((row, i) => {
      const { class: name, probability } = answer.top[i];
      row.querySelector(".name").textContent = name;
      row.querySelector(".share").textContent = percent(probability, probability < 0.1 ? 1 : 0);
      row.querySelector(".fill").style.width = percent(probability, 2).replace(" ", "");
      row.querySelector(".fill").style.backgroundColor = shade;
    });
    this.draw(answer.exit);
  }

  draw(exit = this.answers.length ? Number($("exit").value) : null) {
    drawCurve($("curve"), this.model, exit);
  }
}

// What the server says of an answer that came after its deadline.
export function lateness(answer, deadline) {
  return answer.late > 0 ? `${milliseconds(1000 * answer.late)} late for the deadline of ${milliseconds(deadline)}.` : "";
}

function milliseconds(value) {
  return `${value < 10 ? value.toPrecision(2) : Math.round(value)} ms`;
}

function bar() {
  const row = document.createElement("li");
  for (const name of ["name", "track", "share"]) {
    const part = document.createElement("span");
    part.className = name;
    row.append(part);
  }
  const fill = document.createElement("div");
  fill.className = "fill";
  row.querySelector(".track").append(fill);
  return row;
}
