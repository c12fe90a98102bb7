"use strict";
// Numbers from 0 to 1 as one byte each, from `packed` in page.py.

// {shape, data} -> Uint8Array of 255 * value in row-major order.
function unpack(packed) {
  const characters = atob(packed.data), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
