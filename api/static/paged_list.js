// A list that the server returns in pages, with buttons for the next and the previous page.

import { el, restoreFocus } from "./dom.js";

export class PagedList {
  /**
   * @param options read: reads {entries, next} at a cursor (or null); draw: shows a page's entries; onError: shows an
   *   error; label: noun for the entries
   */
  constructor({ read, draw, onError, label }) {
    Object.assign(this, { read, draw, onError });
    this.cursors = [null]; // of the pages up to the shown one
    this.next = null;
    this.calls = 0;
    const turn = (text, action) => {
      const node = el("button", { type: "button", className: "small", textContent: text });
      node.addEventListener("click", action);
      return node;
    };
    this.previousButton = turn("Previous", () => this.turn(-1));
    this.nextButton = turn("Next", () => this.turn(1));
    this.position = el("span", { className: "muted", role: "status" });
    this.node = el(
      "nav",
      { className: "pager", "aria-label": `Pages of ${label}`, hidden: true },
      this.previousButton,
      this.position,
      this.nextButton,
    );
  }

  get isFirst() {
    return this.cursors.length === 1;
  }

  /** Read and show the current page again. */
  async refresh() {
    this.calls += 1;
    const call = this.calls;
    const page = await this.read(this.cursors.at(-1));
    if (call !== this.calls) return; // a later page was requested meanwhile
    if (!page.entries.length && !this.isFirst) {
      this.cursors.pop(); // the entries of the last page are gone
      await this.refresh();
      return;
    }
    this.next = page.next;
    this.node.hidden = this.isFirst && !this.next;
    this.previousButton.disabled = this.isFirst;
    this.nextButton.disabled = !this.next;
    this.position.textContent = `Page ${this.cursors.length}`;
    this.draw(page.entries);
  }

  /** Start again at the first page, for another query. */
  async restart() {
    this.cursors = [null];
    await this.refresh().catch(this.onError);
  }

  async turn(step) {
    if (step > 0) this.cursors.push(this.next);
    else this.cursors.pop();
    await this.refresh().catch(this.onError);
    restoreFocus(step > 0 ? this.previousButton : this.nextButton);
  }
}
