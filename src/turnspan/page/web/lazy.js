// A long list, of which only the part near the screen is built: ten thousand turns must not cost ten thousand rows.

const NEAR = "1500px 0px";

export class LazyList {
  // `build(item)` makes the element of an item; `height` is a guess at its height in pixels.
  constructor(place, { size, height, build, signal }) {
    this.place = place;
    this.size = size;
    this.height = height;
    this.build = build;
    this.chunks = [];
    this.observer = new IntersectionObserver((seen) => this.see(seen), { rootMargin: NEAR });
    signal.addEventListener("abort", () => this.observer.disconnect());
  }

  set(items) {
    this.observer.disconnect();
    this.chunks = [];
    this.place.replaceChildren();
    this.push(items);
  }

  push(items) {
    for (const item of items) {
      let chunk = this.chunks.at(-1);
      if (!chunk || chunk.items.length >= this.size) {
        chunk = { items: [], element: document.createElement("div"), isBuilt: false };
        chunk.element.className = "chunk";
        chunk.element.role = "none";
        this.chunks.push(chunk);
        this.place.append(chunk.element);
        this.observer.observe(chunk.element);
      }
      chunk.items.push(item);
      if (chunk.isBuilt) chunk.element.append(this.build(item));
      else chunk.element.style.height = `${chunk.items.length * this.height}px`;
    }
  }

  // Remove the items from one on that `isLast` accepts: they are the last ones.
  drop(isLast) {
    for (let chunk = this.chunks.at(-1); chunk; chunk = this.chunks.at(-1)) {
      while (chunk.items.length && isLast(chunk.items.at(-1))) {
        chunk.items.pop();
        if (chunk.isBuilt) chunk.element.lastElementChild.remove();
      }
      if (chunk.items.length || chunk.isBuilt) return; // one on the screen is filled again at once
      this.observer.unobserve(chunk.element);
      chunk.element.remove();
      this.chunks.pop();
    }
  }

  // Build the chunk of an item, wherever it is on the page; return whether the list has the item.
  show(item) {
    const chunk = this.chunks.find((one) => one.items.includes(item));
    if (chunk) this.fill(chunk);
    return chunk !== undefined;
  }

  see(seen) {
    for (const { target, isIntersecting } of seen) {
      const chunk = isIntersecting && this.chunks.find((one) => one.element === target);
      if (chunk) this.fill(chunk);
    }
  }

  fill(chunk) {
    if (chunk.isBuilt) return;
    chunk.isBuilt = true;
    this.observer.unobserve(chunk.element);
    chunk.element.style.height = "";
    chunk.element.append(...chunk.items.map(this.build));
  }
}
