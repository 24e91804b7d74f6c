// The only script in plain text: it inflates the others, which the page's policy lets run by their digest.
"use strict";

let page = null;

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Text that travels deflated, in the element of this name.
async function inflated(id) {
  const packed = new Blob([bytesOf(document.getElementById(id).textContent)]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

inflated("scripts").then((text) => {
  const script = document.createElement("script");
  script.textContent = text;
  document.body.append(script);
});
