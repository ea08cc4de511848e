//! What attention promises, checked on the scalar reference and on every instruction set of the machine.

mod calls;
mod decode;
mod fixture;
mod measure;
mod prefill;
