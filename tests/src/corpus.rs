//! Texts to calibrate and evaluate on, of each kind, the same on every machine and in every commit: put together from phrases by a fixed
//! sequence of numbers. What a test measures on them depends neither on the repository's own text nor on what the system has installed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Bytes of each file: with its halves' passages, enough for what tests measure.
const BYTES: usize = 192 << 10;

/// Writes the files into a folder of their own below `folder` and returns it.
///
/// # Errors
/// The folder cannot be written.
pub fn write(folder: &Path) -> std::io::Result<PathBuf> {
    let corpus = folder.join("corpus");
    std::fs::create_dir_all(&corpus)?;
    for (name, seed, paragraph) in
        [("reports.txt", 1, report as fn(&mut Numbers, usize) -> String), ("manual.md", 2, chapter), ("driver.c", 3, function)]
    {
        let mut numbers = Numbers(seed);
        let mut text = String::with_capacity(BYTES + 4096);
        for i in 0.. {
            text.push_str(&paragraph(&mut numbers, i));
            text.push_str("\n\n");
            if text.len() > BYTES {
                break;
            }
        }
        std::fs::write(corpus.join(name), text)?;
    }
    Ok(corpus)
}

/// A linear congruential generator (Knuth's MMIX constants): which phrase comes next.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

const WHO: [&str; 12] = [
    "the gripper",
    "the left wheel",
    "the charging station",
    "the night shift",
    "the lidar on the mast",
    "the operator",
    "the second arm",
    "the cold store",
    "the conveyor",
    "the battery",
    "the map of the yard",
    "the rear camera",
];
const DID: [&str; 12] = [
    "stopped short of",
    "was moved beside",
    "lost sight of",
    "waited for",
    "was checked against",
    "came back from",
    "slowed down near",
    "was cleaned after",
    "reported trouble with",
    "took the place of",
    "was out of step with",
    "carried twelve boxes past",
];
const WHEN: [&str; 10] = [
    "Early in the morning",
    "After the second delivery",
    "While it was raining",
    "Shortly before noon",
    "As on the day before",
    "Once the door had been closed",
    "Without any warning",
    "During the long test",
    "When the light was poor",
    "At the end of the week",
];
const SO: [&str; 10] = [
    "and nobody had to step in",
    "so the route was planned again",
    "which the log does not explain",
    "although the distance was more than two metres",
    "and the speed was lowered for an hour",
    "because the floor was wet",
    "until someone pressed the green button",
    "so we ordered a new sensor",
    "and this is the third time since spring",
    "but the goods arrived in good order",
];

fn sentence(numbers: &mut Numbers) -> String {
    let (when, who, did, whom, so) = (numbers.of(&WHEN), numbers.of(&WHO), numbers.of(&DID), numbers.of(&WHO), numbers.of(&SO));
    format!("{when} {who} {did} {whom}, {so}.")
}

fn report(numbers: &mut Numbers, number: usize) -> String {
    let mut text = format!("Report {number}, written at {} minutes past {}.", numbers.below(60), numbers.below(24));
    for _ in 0..3 + numbers.below(6) {
        text.push(' ');
        text.push_str(&sentence(numbers));
    }
    text
}

fn chapter(numbers: &mut Numbers, number: usize) -> String {
    let mut text = format!("## {number}. When {} {} {}\n\n{}\n", numbers.of(&WHO), numbers.of(&DID), numbers.of(&WHO), sentence(numbers));
    for step in 1..3 + numbers.below(5) {
        let _ = write!(text, "\n{step}. Look at **{}** and wait {} seconds. {}", numbers.of(&WHO), numbers.below(90), sentence(numbers));
    }
    text
}

fn function(numbers: &mut Numbers, number: usize) -> String {
    const NAMES: [&str; 8] = ["speed", "voltage", "angle", "distance", "torque", "pressure", "current", "offset"];
    let (name, other) = (numbers.of(&NAMES), numbers.of(&NAMES));
    let mut text =
        format!("/* {} */\nstatic int read_{name}_{number}(struct device *dev, int {other})\n{{\n\tint value = 0;\n", sentence(numbers));
    for _ in 0..2 + numbers.below(4) {
        let _ = match numbers.below(3) {
            0 => write!(text, "\tif ({other} > {})\n\t\treturn -EINVAL;\n", numbers.below(4096)),
            1 => writeln!(text, "\tvalue += dev->{} * {other};", numbers.of(&NAMES)),
            _ => writeln!(text, "\tdev_dbg(dev, \"{} is %d\\n\", value);", numbers.of(&NAMES)),
        };
    }
    text.push_str("\treturn value;\n}");
    text
}
