"use strict";
// Many numbers from 0 to 1, a byte each: `packed(...)` of inside/packing.py.

// {shape, data} -> Uint8Array of 255 * the number, the last axis running fastest.
function unpack(packed) {
  const characters = atob(packed.data), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
