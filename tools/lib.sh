# shellcheck shell=bash
# What the scripts beside this file share. They source it; it runs nothing by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SKIPD_CACHE:-$root/.cache}
target=${CARGO_TARGET_DIR:-$root/target}/release
export cache target
aarch64='aarch64-unknown-linux-gnu'
export aarch64
# A cargo installed by rustup is found even where the shell's start-up files were not read.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ -z "${CI:-}" ]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
else
    bold='' dim='' red='' green='' plain=''
fi
export bold dim red green plain

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s\n' "${red}$(basename "$0"): $*${plain}" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
# now: seconds with a fraction, for differences only
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }
# find_nvcc: the path of a CUDA 13 compiler: $NVCC, the system's, or the one that `tools/setup cuda` installs
find_nvcc() {
    local nvcc
    for nvcc in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$cache/cuda/nvidia/cu13/bin/nvcc"; do
        if [ -x "$nvcc" ] && [ -x "$(dirname "$nvcc")/cuobjdump" ] && version_at_least "$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')" 13.0; then
            printf '%s\n' "$nvcc"
            return
        fi
    done
    return 1
}
# aarch64_rustc: the path of a compiler that has the standard library of 64-bit Arm: rustup's or the distribution's
aarch64_rustc() {
    local rustc
    for rustc in "${RUSTC:-}" "$(command -v rustc || true)" /usr/bin/rustc; do
        if [ -x "$rustc" ] && compgen -G "$("$rustc" --print sysroot)/lib/rustlib/$aarch64/lib/libstd-*.rlib" >/dev/null; then
            printf '%s\n' "$rustc"
            return
        fi
    done
    return 1
}
# What runs 64-bit Arm's programs here.
emulator='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
export emulator
# cross PROFILE COMMAND...: cargo for 64-bit Arm, whose programs are emulated here
cross() {
    local rustc
    rustc=$(aarch64_rustc)
    [ "$rustc" = "$(command -v rustc)" ] || export RUSTC=$rustc
    CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$emulator cargo "$2" --quiet --profile "$1" --target "$aarch64" "${@:3}"
}
