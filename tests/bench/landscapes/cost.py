"""Step seconds and peak bytes of one plan: rooflines, exposed host and communication time, additive memory.

Nothing here is additive in the log of the step time, and nothing is a product of option effects: maxima and exposed
remainders decide, so that an option is worth something only while its resource is the bottleneck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .job import GIB, Machine, Model, Plan

CONTEXT_BYTES = 0.6 * GIB
KERNELS_PER_LAYER = 34.0
HOST_RESIDUE = 0.12  # the part of the shorter of host and device time that is not hidden by the longer
CONTENTION = 0.10  # how much collectives slow the kernels that they run beside, at most


@dataclass(frozen=True)
class Cost:
    """Noise-free step seconds, bytes allocated at the peak and bytes reserved then (fragmentation included)."""

    seconds: float
    allocated: float
    reserved: float


def cost(machine: Machine, model: Model, plan: Plan) -> Cost:
    """Return the cost of a step of the whole global batch."""
    allocated, reserved = _memory(machine, model, plan)
    return Cost(_step(machine, model, plan), allocated, reserved)


def _replicas(machine: Machine, plan: Plan) -> float:
    return max(1.0, machine.world / plan.tensor)


def _local_parameters(model: Model, plan: Plan) -> float:
    return (model.dense_parameters + model.expert_parameters / plan.expert) / plan.tensor


def _step(machine: Machine, model: Model, plan: Plan) -> float:
    replicas = _replicas(machine, plan)
    rounds = math.ceil(model.samples / (plan.micro * replicas))
    device = _device_seconds(machine, model, plan)
    host = _host_seconds(machine, model, plan)
    busy = max(device, host) + HOST_RESIDUE * min(device, host)
    micro = busy + plan.stalls * (2e-4 + 0.3 * min(device, host))
    reduce_exposed, gather_exposed, raw = _data_parallel(machine, model, plan, micro, rounds)
    inner = _tensor_parallel(machine, model, plan) + _dispatch(machine, model, plan, device)
    slowed = 1 + CONTENTION * (plan.channels / 16) * min(1.0, raw / max(rounds * micro, 1e-9))
    work = rounds * (micro * slowed + inner + gather_exposed) + reduce_exposed
    work += _optimizer(machine, model, plan) + model.other_seconds * plan.other
    work += plan.allocator_calls * 2e-3 * rounds
    return work + _loader_exposed(machine, model, plan, work, rounds)


def _device_seconds(machine: Machine, model: Model, plan: Plan) -> float:
    """Return device seconds of one micro-batch: a sum over kinds of kernels, each the larger of compute and traffic."""
    tokens = plan.micro * model.sequence
    passes = (6 + 2 * plan.recompute) / 6
    parameters = model.dense_parameters / plan.tensor
    filled = tokens / plan.tensor / (tokens / plan.tensor + model.saturation_tokens)
    rate = machine.flops * min(0.85, model.gemm_efficiency * plan.gemm) * filled
    gemm = passes * max(6 * parameters * tokens / rate, 6 * parameters / machine.memory_bandwidth)
    scores = model.layers * plan.micro * model.heads * model.sequence**2 / plan.tensor
    width = model.hidden / model.heads
    attention = passes * max(
        6 * scores * width / (machine.flops * plan.attention),
        plan.materialised * 18 * scores / machine.memory_bandwidth,
    )
    moved = model.layers * tokens * model.hidden * 2 * (26 * plan.traffic * plan.norm_traffic) / plan.tensor**0.5
    pointwise = passes * moved / machine.memory_bandwidth
    loss = 22 * tokens * model.vocabulary * plan.loss_traffic / machine.memory_bandwidth
    return (1 + plan.padding) * (gemm + attention + pointwise + loss + _experts(machine, model, plan, passes))


def _experts(machine: Machine, model: Model, plan: Plan, passes: float) -> float:
    if not model.experts:
        return 0.0
    tokens = plan.micro * model.sequence * model.routed
    per_expert = tokens / max(1.0, model.experts / plan.expert)
    filled = per_expert / (per_expert + 0.25 * model.saturation_tokens)
    rate = machine.flops * plan.expert_efficiency * plan.gemm**0.5 * filled
    flops = 36 * model.layers * model.hidden**2 * tokens
    weights = 3 * 2 * model.expert_parameters / plan.expert
    balance = 1 + model.imbalance * (1 - 1 / plan.expert)
    return passes * balance * max(flops / rate, weights / machine.memory_bandwidth)


def _host_seconds(machine: Machine, model: Model, plan: Plan) -> float:
    kernels = KERNELS_PER_LAYER * plan.launches * (3 + plan.recompute)
    if model.experts:
        kernels += plan.expert_launches * max(1.0, model.experts / plan.expert) * 2
    seconds = kernels * model.layers * machine.launch_seconds * plan.launch_cost
    return seconds * _host_slowdown(machine, plan)


def _host_slowdown(machine: Machine, plan: Plan) -> float:
    """Return how much slower the launching thread runs: cores are shared with loader workers and worker threads."""
    cores = machine.host_cores / machine.devices_per_node
    wanted = 1 + plan.workers + 0.15 * plan.threads
    crowded = max(0.0, wanted / cores - 1)
    return (1 + 0.5 * crowded) * (1 - 0.12 * plan.bound * (1 if crowded < 0.5 else -1))


def _collective(machine: Machine, plan: Plan, size: float, ranks: float, *, spans: bool) -> float:
    """Return seconds to gather or scatter `size` bytes over `ranks` devices (an all-reduce is two of these)."""
    if ranks <= 1:
        return 0.0
    link = machine.inter_bandwidth if spans else machine.intra_bandwidth
    rate = link * plan.algorithm_bandwidth * (1.5 * plan.channels / (plan.channels + 4))
    steps = ranks**0.6
    return size * (ranks - 1) / ranks / rate + machine.latency * plan.algorithm_latency * steps * (3 if spans else 1)


def _data_parallel(machine: Machine, model: Model, plan: Plan, micro: float, rounds: int) -> tuple[float, float, float]:
    """Return (exposed seconds of gradient reduction a step, of gathers a micro-batch, all communication a step)."""
    replicas = _replicas(machine, plan)
    spans = machine.nodes > 1
    local = _local_parameters(model, plan)
    reductions = rounds if plan.reduce_each_micro or plan.shard_gradients else 1
    size = local * plan.wire_bytes
    buckets = max(1.0, size / plan.bucket)
    halves = 1 if plan.shard_gradients else 2
    once = halves * (
        _collective(machine, plan, size, replicas, spans=spans)
        + (buckets - 1) * machine.latency * plan.algorithm_latency * (3 if spans else 1)
    )
    if replicas <= 1:
        once = 0.0
    hidden = plan.overlap * 0.6 * micro
    tail = once / buckets
    exposed = reductions * (max(0.0, once - hidden) + min(tail, once)) if once else 0.0
    gathers, gather_exposed = 0.0, 0.0
    if plan.shard_parameters:
        group = min(replicas, machine.devices_per_node) if plan.within_node else replicas
        one = _collective(machine, plan, 2 * local, group, spans=spans and not plan.within_node)
        one += model.layers * machine.latency * plan.algorithm_latency
        gathers = plan.gathers * one
        gather_exposed = max(0.06 * gathers, gathers - plan.overlap * (0.5 + 0.5 * plan.prefetched) * micro)
    return exposed, gather_exposed, reductions * once + rounds * gathers


def _tensor_parallel(machine: Machine, model: Model, plan: Plan) -> float:
    if plan.tensor <= 1:
        return 0.0
    size = plan.micro * model.sequence * model.hidden * 2
    spans = plan.tensor > machine.devices_per_node
    one = 2 * _collective(machine, plan, size, plan.tensor, spans=spans)
    return 4 * model.layers * one * (1 - 0.35 * plan.overlap)


def _dispatch(machine: Machine, model: Model, plan: Plan, device: float) -> float:
    """Return exposed seconds of the expert all-to-all of one micro-batch; chunks hide it and cost latency."""
    if not model.experts or plan.expert <= 1:
        return 0.0
    size = plan.micro * model.sequence * model.routed * model.hidden * 2
    spans = plan.expert > machine.devices_per_node
    one = _collective(machine, plan, size, plan.expert, spans=spans) * (1 + 0.5 * model.imbalance)
    total = 4 * model.layers * (one + (plan.chunks - 1) * machine.latency * 2)
    hidden = (1 - 1 / plan.chunks) * min(total, 0.5 * device)
    return total - 0.8 * hidden


def _optimizer(machine: Machine, model: Model, plan: Plan) -> float:
    replicas = _replicas(machine, plan)
    local = _local_parameters(model, plan)
    held = local / replicas if plan.shard_optimizer else local
    device = held * (12 + 2 * plan.optimizer_bytes) * plan.optimizer_traffic / machine.memory_bandwidth
    host = model.layers * 12 * 14 * plan.optimizer_launches * machine.launch_seconds * _host_slowdown(machine, plan)
    seconds = max(device, host) + HOST_RESIDUE * min(device, host)
    if plan.shard_optimizer and not plan.shard_parameters:
        seconds += _collective(machine, plan, 2 * local, replicas, spans=machine.nodes > 1)
    return seconds


def _loader_exposed(machine: Machine, model: Model, plan: Plan, work: float, rounds: int) -> float:
    samples = model.samples / machine.world
    copy = samples * model.sample_bytes / machine.copy_bandwidth * (0.15 if plan.pinned else 1.0)
    decode = samples * model.sample_seconds * plan.decode / (1 + 0.08 * min(plan.threads, 4))
    if not plan.workers:
        return decode + copy
    cores = machine.host_cores / machine.devices_per_node
    useful = min(plan.workers, cores) ** 0.85
    late = decode / useful - work
    jitter = 0.04 * decode / useful / plan.prefetch
    return max(0.0, late) + jitter + copy + 6e-5 * plan.workers * rounds**0.5


def _memory(machine: Machine, model: Model, plan: Plan) -> tuple[float, float]:
    replicas = _replicas(machine, plan)
    group = min(replicas, machine.devices_per_node) if plan.within_node else replicas
    local = _local_parameters(model, plan)
    parameters = 2 * local / (group if plan.shard_parameters else 1)
    gathered = 2 * local / model.layers * (1 + plan.prefetched) if plan.shard_parameters else 0.0
    if plan.shard_parameters and plan.gathers < 2:
        gathered = 2 * local
    gradients = 4 * local / (group if plan.shard_gradients else 1)
    state = (4 + plan.optimizer_bytes) * local / (replicas if plan.shard_optimizer else 1)
    tokens = plan.micro * model.sequence
    per_layer = tokens * model.hidden * 2 * (14 * plan.traffic**0.5 + 2) / plan.tensor**0.8
    if model.experts:
        per_layer *= 1 + 0.5 * model.routed
    scores = plan.materialised * 5 * plan.micro * model.heads * model.sequence**2 / plan.tensor
    activations = (per_layer + scores) * (model.layers * plan.kept + 1)
    logits = tokens * model.vocabulary * 10 * plan.loss_memory
    buffers = plan.workspace + plan.channels * 24e6 * (machine.world > 1) + 2 * plan.bucket + plan.prefetch * 4e6
    if model.experts and plan.expert > 1:
        buffers += 4 * tokens * model.routed * model.hidden * 2 * (1 + 0.3 * (plan.chunks - 1))
    backward = activations + max(logits, 0.3 * gradients)
    allocated = parameters + gathered + gradients + state + buffers + max(backward, 0.5 * state)
    return allocated, allocated * (1 + plan.fragmentation) + CONTEXT_BYTES
