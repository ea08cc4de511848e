//! A step's ways in and out, against what was put in: all of it, nothing behind it, and never what was there before.

use super::super::attend::Attend;
use super::super::ends::{self, AT_ONCE, VECTOR};
use super::super::memory::Pinned;
use super::rig::{AGAIN, shortest};
use super::{Failure, numbers};

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Fetch,
    Return,
}

impl Form {
    pub(super) const ALL: [Self; 2] = [Form::Fetch, Form::Return];

    pub(super) fn name(self) -> String {
        match self {
            Form::Fetch => "fetch_step".into(),
            Form::Return => "return_step".into(),
        }
    }
}

pub(super) fn run(on: &mut Attend, form: Form) -> Result<f32, Failure> {
    match form {
        Form::Fetch => fetch(on),
        Form::Return => give_back(on),
    }
}

/// A step's memory: its head, and numbers up to `room` bytes.
fn step(number: u32, bytes: usize, room: usize) -> Vec<u8> {
    let mut step = bytemuck::cast_slice::<u32, u8>(&ends::head(number, bytes)).to_vec();
    step.extend_from_slice(bytemuck::cast_slice(&numbers((room - step.len()) / 4, u64::from(number))));
    step
}

/// The same step recorded at one length and replayed as it grows and shrinks, written anew each time.
fn fetch(on: &mut Attend) -> Result<f32, Failure> {
    const ROOM: usize = 32 * AT_ONCE;
    let mut host = Pinned::new(&on.device, ROOM)?;
    let to = on.blank(ROOM)?;
    let from = host.device_ptr();
    for (number, bytes) in [(1, 5 * VECTOR), (2, 27 * AT_ONCE + 3 * VECTOR), (3, AT_ONCE + VECTOR)] {
        host.bytes_mut().copy_from_slice(&step(number, bytes, ROOM));
        on.device.synchronize()?;
        let before = on.down(&to, ROOM)?;
        ends::fetch(&on.device, &mut on.cubins, from, to.ptr(), AT_ONCE)?;
        let found = on.down(&to, ROOM)?;
        // What is asked for before the length is known may come along.
        let all = bytes.max(AT_ONCE);
        if found[..all] != host.bytes()[..all] {
            return Err(Failure::Differs(format!("{bytes} bytes: not all of them came")));
        }
        if found[all..] != before[all..] {
            return Err(Failure::Differs(format!("{bytes} bytes: something was written behind them")));
        }
    }
    Ok(shortest(&on.device, AGAIN, || ends::fetch(&on.device, &mut on.cubins, from, to.ptr(), AT_ONCE))?)
}

fn give_back(on: &mut Attend) -> Result<f32, Failure> {
    const FROM: usize = 7 * VECTOR;
    const BYTES: usize = 3 * AT_ONCE - VECTOR;
    let given = step(0x5eed, FROM + BYTES, FROM + BYTES);
    let of_step = on.up(&given)?;
    let host = Pinned::new(&on.device, VECTOR + BYTES + VECTOR)?;
    let to = host.device_ptr();
    ends::give_back(&on.device, &mut on.cubins, of_step.ptr(), (FROM, BYTES), to)?;
    on.device.synchronize()?;
    let found = host.bytes();
    let number = u32::from_le_bytes([found[0], found[1], found[2], found[3]]);
    if number != 0x5eed || found[VECTOR..VECTOR + BYTES] != given[FROM..] {
        return Err(Failure::Differs(format!("what came back is of step {number:#x}, or other bytes")));
    }
    if found[VECTOR + BYTES..].iter().any(|&byte| byte != 0) {
        return Err(Failure::Differs("something was written behind what came back".into()));
    }
    Ok(shortest(&on.device, AGAIN, || ends::give_back(&on.device, &mut on.cubins, of_step.ptr(), (FROM, BYTES), to))?)
}
