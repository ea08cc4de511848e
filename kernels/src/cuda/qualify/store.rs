//! Rotation angles, and what happens to packed QKV rows before attention: bias, norms, rotation, and the way into the pages.

use super::super::attend::Attend;
use super::super::launch::{Shape, launch};
use super::rig::{AGAIN, shortest};
use super::rows::norms;
use super::{Failure, Needs, agree, numbers, slack};
use crate::pages::PAGE;

const EPS: f32 = 1e-6;
const KV_HEADS: usize = 2;

fn frequencies(half: usize) -> Vec<f32> {
    (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect()
}

pub(super) fn angles(on: &mut Attend) -> Result<f32, Failure> {
    let (positions, half, factor) = ([0i32, 1, 127, 4097, 131_071], 64, 1.25f32);
    let inv_freq = frequencies(half);
    let (device_at, device_freq) = (on.up(&positions)?, on.up(&inv_freq)?);
    let out = on.blank(positions.len() * half * 8)?;
    let kernel = on.cubins.get("rope_angles")?;
    let shape = Shape::new((positions.len() as u32, 1), 64);
    let once = || launch!(&on.device, kernel, shape, device_at.ptr(), device_freq.ptr(), factor, half as i32, out.ptr());
    once()?;
    let angle = |&position: &i32| {
        let turned = move |&f: &f32| (f64::from(position) * f64::from(f)).sin_cos();
        inv_freq.iter().map(turned).flat_map(|(sin, cos)| [cos * f64::from(factor), sin * f64::from(factor)]).collect::<Vec<f64>>()
    };
    let want: Vec<f64> = positions.iter().flat_map(angle).collect();
    agree("cosines and sines", &on.floats(&out, want.len())?, &want, 1e-5)?;
    Ok(shortest(&on.device, AGAIN, once)?)
}

pub(super) fn store(on: &mut Attend, needs: &Needs) -> Result<f32, Failure> {
    let (d, heads, cache) = (needs.head_dim, KV_HEADS * needs.group, needs.cache);
    let (all, half) = (heads + 2 * KV_HEADS, d / 2);
    // Rows at the end of one page and the beginning of another, and a padding row; the last real row ends its page's V.
    let (pages, rows) = (3, 4);
    let slots = [(2 * PAGE + 126) as i32, (2 * PAGE + 127) as i32, 0, -1];
    let tails = [0i32, 0, 1, 0];
    let qkv = numbers(rows * all * d, 11);
    let (bias, q_norm, k_norm) = (numbers(all * d, 12), numbers(d, 13), numbers(d, 14));
    let angles: Vec<[f32; 2]> = (0..rows)
        .flat_map(|row| frequencies(half).into_iter().map(move |f| ((126 + row) as f64 * f64::from(f)).sin_cos()))
        .map(|(sin, cos)| [cos as f32, sin as f32])
        .collect();
    let pool_len = pages * KV_HEADS * PAGE * d;
    let (device_qkv, device_bias) = (on.up(&qkv)?, on.up(&bias)?);
    let (device_qn, device_kn, device_angles) = (on.up(&q_norm)?, on.up(&k_norm)?, on.up(&angles)?);
    let (device_slots, device_tails) = (on.up(&slots)?, on.up(&tails)?);
    let (q, k, v) = (on.blank(rows * heads * d * 2)?, on.blank(pool_len * 2)?, on.blank(pool_len * 2)?);
    let kernel = on.cubins.get(&format!("qkv_store_{}", cache.name()))?;
    let shape = Shape::new((rows as u32, all.div_ceil(4) as u32), 128);
    let sizes = [heads, KV_HEADS, d].map(|n| n as i32);
    let once = || {
        launch!(
            &on.device,
            kernel,
            shape,
            device_qkv.ptr(),
            device_bias.ptr(),
            device_qn.ptr(),
            device_kn.ptr(),
            EPS,
            device_angles.ptr(),
            device_slots.ptr(),
            device_tails.ptr(),
            sizes[0],
            sizes[1],
            sizes[2],
            q.ptr(),
            k.ptr(),
            v.ptr()
        )
    };
    once()?;

    let head = |row: usize, head: usize| {
        let at = (row * all + head) * d;
        let mut x: Vec<f64> = qkv[at..at + d].iter().zip(&bias[head * d..]).map(|(&x, &b)| f64::from(x) + f64::from(b)).collect();
        if head < heads + KV_HEADS {
            x = norms(&x, if head < heads { &q_norm } else { &k_norm }, EPS);
            for i in 0..half {
                let [cos, sin] = angles[row * half + i].map(f64::from);
                (x[i], x[i + half]) = (x[i] * cos - x[i + half] * sin, x[i + half] * cos + x[i] * sin);
            }
        }
        x
    };
    let found_q = on.halves(&q, rows * heads * d, cache)?;
    let want_q: Vec<f64> = (0..rows).flat_map(|row| (0..heads).flat_map(move |h| head(row, h))).collect();
    agree("queries", &found_q, &want_q, 2.0 * slack(cache))?;
    let (found_k, found_v) = (on.halves(&k, pool_len, cache)?, on.halves(&v, pool_len, cache)?);
    // A vector of the pools, and whether anything may have been written there.
    for (page, kv_head, slot) in (0..pages).flat_map(|p| (0..KV_HEADS).flat_map(move |h| (0..PAGE).map(move |s| (p, h, s)))) {
        let at = ((page * KV_HEADS + kv_head) * PAGE + slot) * d;
        let row = slots.iter().position(|&s| s >= 0 && s as usize == page * PAGE + slot);
        let (k, v) = (&found_k[at..at + d], &found_v[at..at + d]);
        match row {
            Some(row) => {
                agree("keys", k, &head(row, heads + kv_head), 2.0 * slack(cache))?;
                agree("values", v, &head(row, heads + KV_HEADS + kv_head), 2.0 * slack(cache))?;
            }
            None if page == 0 => agree("the tail of a page", v, &vec![0.0; d], 0.0)?,
            None if k.iter().chain(v).all(|x| x.is_nan()) => {}
            None => return Err(Failure::Differs(format!("something was written to slot {slot} of page {page}"))),
        }
    }
    Ok(shortest(&on.device, AGAIN, once)?)
}
