"""The kernels.  Only `layers.py` imports this file, because it needs Triton.

Sums within a row are in float32, or float64 for float64; every element is summed in an order that depends neither on
the other rows nor on the number of blocks, except gradients of norm weights, whose partial sums depend on the number of
rows.  No kernel uses atomic operations, so that a step repeated on the same GPU gives the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _scores(q, k, bias, bias_q, bias_k, rows, columns, valid_q, valid_k, scale, causal, has_bias,
            PRECISION: tl.constexpr):  # fmt: skip
    """Return the masked scores (BQ, BK) of a block of queries and keys; -inf where a query may not attend."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if has_bias:
        places = bias + rows[:, None] * bias_q + columns[None, :] * bias_k
        scores += tl.load(places, mask=valid_q[:, None] & valid_k[None, :], other=0.0).to(tl.float32)
    allowed = valid_k[None, :] & (rows[:, None] >= 0)
    allowed = allowed & ((rows[:, None] >= columns[None, :]) | (causal == 0))
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def _tile(base, rows, row_stride, valid, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return a tile (rows, BLOCK) of vectors of WIDTH features, the rest 0."""
    features = tl.arange(0, BLOCK)
    mask = valid[:, None] & (features < WIDTH)[None, :]
    return tl.load(base + rows[:, None] * row_stride + features[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, rows, row_stride, valid, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    features = tl.arange(0, BLOCK)
    mask = valid[:, None] & (features < WIDTH)[None, :]
    tl.store(base + rows[:, None] * row_stride + features[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def attention_forward(
    q_ptr, k_ptr, v_ptr, bias_ptr, out_ptr, lse_ptr,
    q_n, q_h, q_t, k_n, k_h, k_t, v_n, v_h, v_t, bias_n, bias_h, bias_q, bias_k, out_n, out_h, out_t,
    heads, n_queries, n_keys, scale, causal, has_bias,
    GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of one sentence: all queries and all keys in one block."""
    n, h = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    rows, columns = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    valid_q, valid_k = rows < n_queries, columns < n_keys
    q = _tile(q_ptr + n * q_n + h * q_h, rows, q_t, valid_q, DK, BLOCK_DK)
    k = _tile(k_ptr + n * k_n + (h // GROUP) * k_h, columns, k_t, valid_k, DK, BLOCK_DK)
    v = _tile(v_ptr + n * v_n + (h // GROUP) * v_h, columns, v_t, valid_k, DV, BLOCK_DV)
    bias = bias_ptr + n * bias_n + h * bias_h
    scores = _scores(q, k, bias, bias_q, bias_k, rows, columns, valid_q, valid_k, scale, causal, has_bias, PRECISION)
    largest = tl.max(scores, 1)
    weights = tl.exp(scores - largest[:, None])
    total = tl.sum(weights, 1)
    out = tl.dot((weights / total[:, None]).to(v.dtype), v, input_precision=PRECISION)
    _store(out_ptr + n * out_n + h * out_h, rows, out_t, valid_q, out, DV, BLOCK_DV)
    tl.store(lse_ptr + (n * heads + h) * n_queries + rows, largest + tl.log(total), mask=valid_q)


@triton.jit
def attention_backward(
    q_ptr, k_ptr, v_ptr, bias_ptr, lse_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_n, q_h, q_t, k_n, k_h, k_t, v_n, v_h, v_t, bias_n, bias_h, bias_q, bias_k, grad_n, grad_h, grad_t,
    dq_n, dq_h, dq_t, dk_n, dk_h, dk_t, dv_n, dv_h, dv_t,
    kv_heads, n_queries, n_keys, scale, causal, has_bias,
    GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One key-value head of one sentence, and the query heads that share it; the weights are computed again."""
    n, kv = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    rows, columns = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    valid_q, valid_k = rows < n_queries, columns < n_keys
    k = _tile(k_ptr + n * k_n + kv * k_h, columns, k_t, valid_k, DK, BLOCK_DK)
    v = _tile(v_ptr + n * v_n + kv * v_h, columns, v_t, valid_k, DV, BLOCK_DV)
    grad_k = tl.zeros((BLOCK_K, BLOCK_DK), tl.float32)
    grad_v = tl.zeros((BLOCK_K, BLOCK_DV), tl.float32)
    for member in range(GROUP):
        h = kv * GROUP + member
        q = _tile(q_ptr + n * q_n + h * q_h, rows, q_t, valid_q, DK, BLOCK_DK)
        grad = _tile(grad_ptr + n * grad_n + h * grad_h, rows, grad_t, valid_q, DV, BLOCK_DV)
        lse = tl.load(lse_ptr + (n * kv_heads * GROUP + h) * n_queries + rows, mask=valid_q, other=float("inf"))
        bias = bias_ptr + n * bias_n + h * bias_h
        scores = _scores(
            q, k, bias, bias_q, bias_k, rows, columns, valid_q, valid_k, scale, causal, has_bias, PRECISION
        )
        weights = tl.exp(scores - lse[:, None])
        grad_v += tl.dot(tl.trans(weights.to(grad.dtype)), grad, input_precision=PRECISION)
        grad_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        along = tl.sum(weights * grad_weights, 1)
        grad_scores = (weights * (grad_weights - along[:, None]) * scale).to(q.dtype)
        grad_q = tl.dot(grad_scores, k, input_precision=PRECISION)
        _store(dq_ptr + n * dq_n + h * dq_h, rows, dq_t, valid_q, grad_q, DK, BLOCK_DK)
        grad_k += tl.dot(tl.trans(grad_scores), q, input_precision=PRECISION)
    _store(dk_ptr + n * dk_n + kv * dk_h, columns, dk_t, valid_k, grad_k, DK, BLOCK_DK)
    _store(dv_ptr + n * dv_n + kv * dv_h, columns, dv_t, valid_k, grad_v, DV, BLOCK_DV)


@triton.jit
def _kept(seed, row, threshold, BLOCK: tl.constexpr):
    """Return whether each of BLOCK elements of a row is kept: one byte of Philox4x32-7 per element.

    The rate is a multiple of 1/256 as on the CPU (`nn/dropout.py`).  One call of Philox serves four elements.
    """
    counters = row * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.randint4x(seed, counters, n_rounds=7)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return (words & 255) >= threshold


@triton.jit
def add_and_norm_forward(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, seed_ptr, sum_ptr, out_ptr, mean_ptr, inverse_ptr,
    call, threshold, scale, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """out = norm(residual + dropout(x)) of one row of D features; NORM: 0 none, 1 LayerNorm, 2 RMSNorm."""
    row = tl.program_id(0).to(tl.int64)
    features = tl.arange(0, BLOCK)
    valid = features < D
    value = tl.load(x_ptr + row * D + features, mask=valid, other=0.0).to(tl.float32)
    if DROPS:
        seed = tl.load(seed_ptr) + call
        value = tl.where(_kept(seed, tl.program_id(0), threshold, BLOCK), value * scale, 0.0)
    if HAS_RESIDUAL:
        value += tl.load(residual_ptr + row * D + features, mask=valid, other=0.0).to(tl.float32)
    if HAS_RESIDUAL or DROPS:
        value = value.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * D + features, value, mask=valid)
        value = value.to(tl.float32)
    if NORM != 0:
        centred = value
        if NORM == 1:
            mean = tl.sum(value, 0) / D
            tl.store(mean_ptr + row, mean)
            centred = tl.where(valid, value - mean, 0.0)
        inverse = tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
        tl.store(inverse_ptr + row, inverse)
        out = centred * inverse * tl.load(weight_ptr + features, mask=valid, other=0.0).to(tl.float32)
        if HAS_BIAS:
            out += tl.load(bias_ptr + features, mask=valid, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * D + features, out.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def add_and_norm_backward(
    grad_ptr, sum_ptr, weight_ptr, seed_ptr, mean_ptr, inverse_ptr, dx_ptr, dresidual_ptr, dweight_ptr, dbias_ptr,
    rows, call, threshold, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The gradients of some rows, and the sums of these rows for the weights, which the caller adds."""
    features = tl.arange(0, BLOCK)
    valid = features < D
    if NORM != 0:
        weight = tl.load(weight_ptr + features, mask=valid, other=0.0).to(tl.float32)
        grad_weight = tl.zeros((BLOCK,), tl.float32)
        grad_bias = tl.zeros((BLOCK,), tl.float32)
    wide = tl.program_id(0).to(tl.int64) * 0  # an offset may exceed 32 bits
    index = tl.program_id(0)
    while index < rows:
        row = wide + index
        grad = tl.load(grad_ptr + row * D + features, mask=valid, other=0.0).to(tl.float32)
        if NORM != 0:
            value = tl.load(sum_ptr + row * D + features, mask=valid, other=0.0).to(tl.float32)
            inverse = tl.load(inverse_ptr + row)
            if NORM == 1:
                value = tl.where(valid, value - tl.load(mean_ptr + row), 0.0)
            normed = value * inverse
            grad_weight += grad * normed
            if HAS_BIAS:
                grad_bias += grad
            grad = grad * weight
            along = tl.sum(grad * normed, 0) / D
            if NORM == 1:
                grad = grad - tl.sum(grad, 0) / D
            grad = (grad - normed * along) * inverse
        if HAS_RESIDUAL:
            tl.store(dresidual_ptr + row * D + features, grad.to(dresidual_ptr.dtype.element_ty), mask=valid)
        if DROPS:
            seed = tl.load(seed_ptr) + call
            grad = tl.where(_kept(seed, index, threshold, BLOCK), grad * scale, 0.0)
        if DROPS or not HAS_RESIDUAL:
            tl.store(dx_ptr + row * D + features, grad.to(dx_ptr.dtype.element_ty), mask=valid)
        index += tl.num_programs(0)
    if NORM != 0:
        tl.store(dweight_ptr + tl.program_id(0) * D + features, grad_weight, mask=valid)
        if HAS_BIAS:
            tl.store(dbias_ptr + tl.program_id(0) * D + features, grad_bias, mask=valid)


@triton.jit
def column_sums(
    grad_ptr, hidden_ptr, partial_ptr, rows, per_block, D,
    MASKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums over some rows of each column of a gradient (rows, D), which the caller adds; MASKS: the gradient of relu
    replaces that of its result `hidden`."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid = columns < D
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    begin = tl.program_id(1) * per_block
    end = tl.minimum(begin + per_block, rows)
    while begin < end:
        row = begin + tl.arange(0, BLOCK_M)
        mask = (row < end)[:, None] & valid[None, :]
        places = row.to(tl.int64)[:, None] * D + columns[None, :]
        grad = tl.load(grad_ptr + places, mask=mask, other=0.0)
        if MASKS:
            grad = tl.where(tl.load(hidden_ptr + places, mask=mask, other=0.0) > 0, grad, 0.0)
            tl.store(grad_ptr + places, grad, mask=mask)
        total += grad.to(tl.float32)
        begin += BLOCK_M
    tl.store(partial_ptr + tl.program_id(1) * D + columns, tl.sum(total, 0), mask=valid)


@triton.jit
def loss_forward(
    logits_ptr, targets_ptr, smoothed_ptr, nll_ptr, stride, smoothing, pad,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """The label-smoothed cross-entropy of one row of logits, which its gradient replaces; 0 where the target is pad."""
    row = tl.program_id(0).to(tl.int64)
    base = logits_ptr + row * stride
    target = tl.load(targets_ptr + row)
    counts = (target != pad).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, VOCAB, BLOCK):
        valid = begin + columns < VOCAB
        logits = tl.load(base + begin + columns, mask=valid, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, logits)
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(largest - shift) + tl.exp(logits - shift)
        largest = larger
        plain += tl.where(valid, logits, 0.0)
    top = tl.max(largest, 0)
    lse = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))
    nll = lse - tl.load(base + target).to(tl.float32)
    smoothed = (1 - smoothing) * nll + smoothing * (lse - tl.sum(plain, 0) / VOCAB)
    tl.store(nll_ptr + row, tl.where(counts > 0, nll, 0.0))
    tl.store(smoothed_ptr + row, tl.where(counts > 0, smoothed, 0.0))
    if GRADIENT:
        for begin in range(0, VOCAB, BLOCK):
            valid = begin + columns < VOCAB
            logits = tl.load(base + begin + columns, mask=valid, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(logits - lse) - smoothing / VOCAB
            gradient = gradient - tl.where(begin + columns == target, 1 - smoothing, 0.0)
            gradient = tl.where(counts > 0, gradient, 0.0)
            tl.store(base + begin + columns, gradient.to(logits_ptr.dtype.element_ty), mask=valid)
