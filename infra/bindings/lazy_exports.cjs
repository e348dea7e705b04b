// Node runs this before CDKTF's own code. The index of a provider's bindings requires each of its ~2,100 modules at
// once, at 2 s and 500 MB; rewritten here, it requires a module when that module is first used. An index of another
// form is left as it is: slower, and as right.
"use strict";
const Module = require("node:module");

const INDEX = /[\\/]@cdktf[\\/]provider-[^\\/]+[\\/]lib[\\/]index\.js$/;
const EXPORT = /^exports\.(\w+) = require\(("[^"\n]+")\);$/gm;
const LAZY = 'Object.defineProperty(exports, "$1", { enumerable: true, configurable: true, get: () => require($2) });';

const load = Module._extensions[".js"];
Module._extensions[".js"] = (module, file) => {
  if (INDEX.test(file)) {
    const compile = module._compile;
    module._compile = (source, ...rest) => compile.call(module, source.replace(EXPORT, LAZY), ...rest);
  }
  return load(module, file);
};
