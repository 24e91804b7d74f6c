// The only script in plain text: it inflates the others, which the page's policy lets run by their digest.
"use strict";

let page = null;

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Five digits to the base of 85 for four bytes, the last of them perhaps in part.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

function unpacked85(text) {
  const digits = new Map([...DIGITS].map((digit, value) => [digit, value]));
  const whole = text.padEnd(5 * Math.ceil(text.length / 5), "~");
  const bytes = new DataView(new ArrayBuffer((4 * whole.length) / 5));
  for (let i = 0; i < whole.length; i += 5) {
    let value = 0;
    for (let j = i; j < i + 5; j++) value = 85 * value + digits.get(whole[j]);
    bytes.setUint32((4 * i) / 5, value);
  }
  return bytes.buffer.slice(0, bytes.byteLength - (whole.length - text.length));
}

// Text that travels deflated, in the element of this name.
async function inflated(id) {
  const packed = new Blob([unpacked85(document.getElementById(id).textContent)]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

inflated("scripts").then((text) => {
  const script = document.createElement("script");
  script.textContent = text;
  document.body.append(script);
});
