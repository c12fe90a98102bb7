"use strict";
// Many numbers from 0 to 1, a byte each: `packed(...)` of inside/packing.py.

// {shape, data} -> Uint8Array of 255 * the number, the last axis running fastest.
const unpack = (packed) => Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
