"""What is done for each answer, spelled out in vectors.

These are intrinsics: compiled loops call them as functions, and LLVM gets the instructions as they
stand here, on vectors of WIDTH lanes. As plain loops the same steps would be widened to 32 bits, and
each would be preceded by a dozen checks that its arrays don't overlap; together that takes many times
as long.

Their parameters are numba's types, not values, and each returns its signature and what generates its
code. Places are counted in elements of the flat array that they belong to.
"""

# ruff: noqa: PLR0913, PLR0917 - numba passes an intrinsic's arguments by position

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

__all__ = ["WIDTH", "add_piece", "ask_for", "below", "lowest_bit", "reaching", "winning"]

intrinsic: Any = untyped_intrinsic
cgutils: Any = untyped_cgutils

WIDTH = 64
"""How many tokens stand side by side in a block of the coarse copy."""

AHEAD = 2**14
"""How many bytes before they are read blocks are asked for; the processor alone looks less far ahead."""

HALF = WIDTH // 2
SHORTS, WORDS = ir.VectorType(ir.IntType(16), HALF), ir.VectorType(ir.IntType(32), HALF // 2)
FLOATS = ir.VectorType(ir.FloatType(), WIDTH)


def _lanes(  # pragma: no cover - runs while compiling
    context: Any, builder: Any, signature: Any, args: Any, k: int, at: Any, kind: Any
) -> Any:
    """Return a pointer to a vector in the array that is argument k, from place `at` on."""
    array = context.make_array(signature.args[k])(context, builder, args[k])
    return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())


def _spread(builder: Any, value: Any, kind: Any) -> Any:  # pragma: no cover - runs while compiling
    """Return a vector with the value in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    return builder.shuffle_vector(builder.insert_element(nothing, value, ir.IntType(32)(0)), nothing, zeros)


def _high_product(builder: Any, left: Any, right: Any) -> Any:  # pragma: no cover - runs while compiling
    """Return the upper sixteen of the 32 bits of products."""
    wide = ir.VectorType(ir.IntType(32), HALF)
    product = builder.mul(builder.zext(left, wide), builder.zext(right, wide))
    return builder.trunc(builder.lshr(product, ir.Constant(wide, [16] * HALF)), SHORTS)


def _fused(builder: Any, left: Any, right: Any, plus: Any) -> Any:  # pragma: no cover - runs while compiling
    """Return `left * right + plus`, in one step where the processor has it."""
    return builder.fadd(builder.fmul(left, right, flags=("contract",)), plus, flags=("contract",))


def _bring_near(builder: Any, place: Any, how_near: int) -> None:  # pragma: no cover - runs while compiling
    """Have memory brought into a cache (3: the nearest), without waiting for it."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
    builder.call(prefetch, [builder.bitcast(place, pointer), number(0), number(how_near), number(1)])


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def ask_for(_: Any, array: Any, at: Any) -> Any:
    """Have what stands at a place of the array brought near."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _bring_near(builder, _lanes(context, builder, signature, args, 0, args[1], ir.IntType(8)), 3)
        return context.get_dummy_value()

    return types.void(array, at), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def add_piece(
    _: Any, bytes_: Any, at: Any, shares: Any, first: Any, count: Any, unit: Any, centre: Any, off: Any,
    scales: Any, from_: Any, masses: Any, to: Any, rest: Any,
) -> Any:  # fmt: skip
    """Sum up `count` examples from `first` on, whose rows begin at `at`, for WIDTH tokens t.

    With `mass = unit * sum over i of (q[i, t] * shares[first + i] >> 8) + centre`, add `scales[from_ + t] * mass`
    to `masses[to + t]` and `scales[from_ + t] * (off - mass)` to `rest[t]`.

    Two tokens share sixteen bits: `q[i, t]` is byte 2t of a row, and `q[i, HALF + t]` byte 2t + 1. Shares hold their
    sixteen bits twice, because 32 bits are spread faster.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, _, first, count, unit, centre, off, _, from_, _, to, _ = args
        weights = context.make_array(signature.args[2])(context, builder, args[2])
        sums = [cgutils.alloca_once_value(builder, ir.Constant(SHORTS, [0] * HALF)) for _ in range(2)]
        with cgutils.for_range(builder, count) as loop:
            place = builder.add(at, builder.mul(loop.index, ir.IntType(64)(WIDTH)))
            both = builder.load(_lanes(context, builder, signature, args, 0, place, SHORTS), align=1)
            later = builder.add(place, ir.IntType(64)(AHEAD))
            _bring_near(builder, _lanes(context, builder, signature, args, 0, later, ir.IntType(8)), 2)
            share = builder.load(builder.gep(weights.data, [builder.add(first, loop.index)]))
            share = builder.bitcast(_spread(builder, share, WORDS), SHORTS)
            low = builder.shl(both, ir.Constant(SHORTS, [8] * HALF))
            high = builder.and_(both, ir.Constant(SHORTS, [0xFF00] * HALF))
            for total, half in zip(sums, (low, high), strict=True):
                builder.store(builder.add(builder.load(total), _high_product(builder, half, share)), total)
        both_sums = builder.shuffle_vector(
            *map(builder.load, sums), ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), list(range(WIDTH)))
        )
        mass = _fused(
            builder, builder.uitofp(both_sums, FLOATS), _spread(builder, unit, FLOATS), _spread(builder, centre, FLOATS)
        )
        scale = builder.load(_lanes(context, builder, signature, args, 8, from_, FLOATS), align=4)
        left = builder.fsub(_spread(builder, off, FLOATS), mass)
        for k, place, value in ((10, to, mass), (12, ir.IntType(64)(0), left)):
            target = _lanes(context, builder, signature, args, k, place, FLOATS)
            builder.store(_fused(builder, scale, value, builder.load(target, align=4)), target, align=4)
        return context.get_dummy_value()

    return types.void(bytes_, at, shares, first, count, unit, centre, off, scales, from_, masses, to, rest), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def reaching(_: Any, masses: Any, at: Any, rest: Any, low: Any) -> Any:
    """Return, as bits, where `2 * masses[at + t] + rest[t] >= low`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mass, rest = (
            builder.load(_lanes(context, builder, signature, args, k, place, FLOATS), align=4)
            for k, place in ((0, args[1]), (2, ir.IntType(64)(0)))
        )
        high = builder.fadd(builder.fadd(mass, mass), rest)
        return builder.bitcast(builder.fcmp_ordered(">=", high, _spread(builder, args[3], FLOATS)), ir.IntType(64))

    return types.uint64(masses, at, rest, low), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def winning(_: Any, masses: Any, at: Any, n_classes: Any, rest: Any) -> Any:
    """Return, as bits, where no other class is sure to have more mass than the one at `masses[at + t]`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, at, n_classes, _ = args
        rest = builder.load(_lanes(context, builder, signature, args, 3, ir.IntType(64)(0), FLOATS), align=4)
        slack, most = (
            cgutils.alloca_once_value(builder, value) for value in (rest, ir.Constant(FLOATS, [0.0] * WIDTH))
        )
        with cgutils.for_range(builder, n_classes) as loop:
            place = builder.mul(loop.index, ir.IntType(64)(WIDTH))
            mass = builder.load(_lanes(context, builder, signature, args, 0, place, FLOATS), align=4)
            builder.store(builder.fadd(builder.load(slack), mass), slack)
            more = builder.fcmp_ordered(">", mass, builder.load(most))
            builder.store(builder.select(more, mass, builder.load(most)), most)
        mass = builder.load(_lanes(context, builder, signature, args, 0, at, FLOATS), align=4)
        high = builder.fadd(mass, builder.load(slack))
        return builder.bitcast(builder.fcmp_ordered(">=", high, builder.load(most)), ir.IntType(64))

    return types.uint64(masses, at, n_classes, rest), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def lowest_bit(_: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(bits), generate


@intrinsic  # type: ignore[untyped-decorator]  # pragma: no cover - runs while compiling
def below(_: Any, left: Any, right: Any, at: Any) -> Any:
    """Return, as bits, where `left[at + t] < right[at + t]`, for WIDTH codes t.

    Sixteen at a time: with more, and without AVX-512, bits would be taken out of their lanes one by one.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(16), 16)
        bits = ir.IntType(64)(0)
        for first in range(0, WIDTH, 16):
            place = builder.add(args[2], ir.IntType(64)(first))
            left, right = (
                builder.load(_lanes(context, builder, signature, args, k, place, kind), align=2) for k in (0, 1)
            )
            part = builder.bitcast(builder.icmp_unsigned("<", left, right), ir.IntType(16))
            bits = builder.or_(bits, builder.shl(builder.zext(part, ir.IntType(64)), ir.IntType(64)(first)))
        return bits

    return types.uint64(left, right, at), generate
