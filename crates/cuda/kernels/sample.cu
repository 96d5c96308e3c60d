// registers: 64
// Choosing a token for every logit row: a block a row. Semantics, integers and bits are those of
// the CPU device's `sample` module: adjusted logits, integer weights, prefixes of the order
// (weight descending, id ascending), one Philox draw; sums of log-probabilities in sixteen lanes
// over blocks of 1,024 tokens, added in order in f64.
#include "common.cuh"

constexpr int THREADS = 1024;
constexpr uint32_t UNIT = 1u << 30;
constexpr uint32_t IN_PROMPT = 1u << 31;
constexpr int BIAS_MAX = 512;
constexpr int TOP_MAX = 20;
constexpr uint32_t PAGE = 32;
constexpr int SUM_BLOCKS_MAX = 1024;

struct Params {
    float temperature, top_p, min_p, repetition, presence, frequency;
    uint32_t top_k, seed_low, seed_high, choice, position, prompt_len, masked;
    int32_t target, logprobs;
    uint32_t bias_count;
};
struct Bias {
    uint32_t token;
    float bias;
};
struct Result {
    uint32_t token, status;
    float logprob;
    uint32_t top_count, top_ids[TOP_MAX];
    float top_logprobs[TOP_MAX];
};
enum { OK = 0, NOT_FINITE = 1, NOTHING_ALLOWED = 2, BAD_TARGET = 3 };

struct SampleArgs {
    const uint32_t* live;
    const float* logits;
    const Params* params;
    const uint32_t *logit_rows, *logit_slots, *token_seq, *masks;
    const Bias* bias;
    const uint32_t *block_table, *token_pages;
    uint32_t *last_token, *scratch;
    Result* results;
    uint32_t rows, vocab, table_stride, scratch_words;
};

struct Shared {
    float value[32];
    uint32_t index[32];
    uint64_t wide[THREADS];
    uint64_t mass[2048];
    uint32_t tokens[2048];
    double sums[SUM_BLOCKS_MAX];
    Bias bias[BIAS_MAX];
    uint64_t out[4];
    uint32_t nan;
};

struct Best {
    float v;
    uint32_t i;
};

__device__ __forceinline__ Best better(Best a, Best b) {
    return b.v > a.v || (b.v == a.v && b.i < a.i) ? b : a;
}

// The greatest value below `under` in the order (value descending, id ascending), and its id;
// -infinity where there is none. `nan` becomes 1 where a value is NaN.
__device__ Best block_best(Shared& s, const float* row, uint32_t n, bool bounded, Best under) {
    Best best = {-INFINITY, 0xffffffffu};
    bool nan = false;
    if (threadIdx.x == 0) s.nan = 0;
    __syncthreads();
    auto see = [&](float v, uint32_t i) {
        nan |= v != v;
        const bool allowed = !bounded || v < under.v || (v == under.v && i > under.i);
        if (allowed && (v > best.v || best.i == 0xffffffffu)) best = {v, i};
    };
    const uint32_t fours = (uintptr_t)row % 16 == 0 ? n / 4 : 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < fours; i += THREADS) {
        const float4 v = ((const float4*)row)[i];
        see(v.x, 4 * i);
        see(v.y, 4 * i + 1);
        see(v.z, 4 * i + 2);
        see(v.w, 4 * i + 3);
    }
    for (uint32_t i = fours * 4 + threadIdx.x; i < n; i += THREADS) see(row[i], i);
    if (nan) s.nan = 1;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        Best o = {__shfl_xor_sync(~0u, best.v, d), __shfl_xor_sync(~0u, best.i, d)};
        best = better(best, o);
    }
    if (threadIdx.x % 32 == 0) {
        s.value[threadIdx.x / 32] = best.v;
        s.index[threadIdx.x / 32] = best.i;
    }
    __syncthreads();
    best = {s.value[0], s.index[0]};
    for (int w = 1; w < 32; w++) best = better(best, {s.value[w], s.index[w]});
    __syncthreads();
    return best;
}

__device__ uint64_t block_sum(Shared& s, uint64_t v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) s.wide[threadIdx.x / 32] = v;
    __syncthreads();
    uint64_t sum = 0;
    for (int w = 0; w < 32; w++) sum += s.wide[w];
    __syncthreads();
    return sum;
}

// The sum of the values of lower threads.
__device__ uint64_t block_before(Shared& s, uint64_t v) {
    s.wide[threadIdx.x] = v;
    __syncthreads();
    for (int d = 1; d < THREADS; d <<= 1) {
        const uint64_t o = threadIdx.x >= d ? s.wide[threadIdx.x - d] : 0;
        __syncthreads();
        s.wide[threadIdx.x] += o;
        __syncthreads();
    }
    const uint64_t before = s.wide[threadIdx.x] - v;
    __syncthreads();
    return before;
}

__device__ double ln_exact(double x) {
    if (x == 0.0) return -INFINITY;
    const uint64_t bits = __double_as_longlong(x);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    double m = __longlong_as_double((bits & ((1ull << 52) - 1)) | (1023ull << 52));
    if (m > 1.41421356237309504880) {
        m = __dmul_rn(m, 0.5);
        e += 1;
    }
    const double t = __ddiv_rn(__dsub_rn(m, 1.0), __dadd_rn(m, 1.0));
    const double t2 = __dmul_rn(t, t);
    double series = 0.0;
    for (int k = 12; k >= 0; k--)
        series = __dadd_rn(__dmul_rn(series, t2), __ddiv_rn(1.0, (double)(2 * k + 1)));
    return __dadd_rn(__dmul_rn((double)e, 0.693147180559945309417), __dmul_rn(__dmul_rn(2.0, t), series));
}

__device__ double block_log_sum(Shared& s, const float* row, uint32_t n, float m) {
    const uint32_t blocks = (n + 1023) / 1024;
    // Sixteen neighbouring threads are the lanes of a block of tokens.
    for (uint32_t w0 = 0; w0 < blocks * 16; w0 += THREADS) {
        const uint32_t w = w0 + threadIdx.x, block = w / 16, lane = w % 16;
        float sum = 0.0f;
        if (block < blocks) {
            const uint32_t end = min(n, (block + 1) * 1024);
            for (uint32_t i = block * 1024 + lane; i < end; i += 16)
                sum = __fadd_rn(sum, exp_exact(__fsub_rn(row[i], m)));
        }
#pragma unroll
        for (int d = 8; d > 0; d >>= 1) sum = __fadd_rn(sum, __shfl_down_sync(~0u, sum, d, 16));
        if (lane == 0 && block < blocks) s.sums[block] = (double)sum;
    }
    __syncthreads();
    double total = 0.0;
    for (uint32_t b = 0; b < blocks; b++) total = __dadd_rn(total, s.sums[b]);
    __syncthreads();
    return ln_exact(total);
}

__device__ __forceinline__ float logprob_of(float x, float m, double log_sum) {
    return __double2float_rn(__dsub_rn(__dsub_rn((double)x, (double)m), log_sum));
}

__device__ void adjust(Shared& s, const SampleArgs& a, const Params& p, uint32_t r, const float* row,
                       uint32_t* words) {
    const uint32_t n = a.vocab;
    const bool penalties = p.repetition != 1.0f || p.presence != 0.0f || p.frequency != 0.0f;
    if (penalties) {
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) words[i] = 0;
        __syncthreads();
        const uint32_t* table = a.block_table + (size_t)a.token_seq[a.logit_rows[r]] * a.table_stride;
        const uint32_t first = p.repetition == 1.0f ? p.prompt_len : 0;
        for (uint32_t t = first + threadIdx.x; t <= p.position; t += THREADS) {
            const uint32_t token = a.token_pages[(size_t)table[t / PAGE] * PAGE + t % PAGE];
            if (token < n) {
                if (t < p.prompt_len) atomicOr(words + token, IN_PROMPT); else atomicAdd(words + token, 1u);
            }
        }
        __syncthreads();
    }
    float* out = (float*)words;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float x = row[i];
        const uint32_t word = penalties ? words[i] : 0;
        if (word) {
            x = x > 0.0f ? __fdiv_rn(x, p.repetition) : __fmul_rn(x, p.repetition);
            const uint32_t count = word & ~IN_PROMPT;
            if (count) x = __fsub_rn(__fsub_rn(x, __fmul_rn((float)count, p.frequency)), p.presence);
        }
        out[i] = x;
    }
    const uint32_t biases = min(p.bias_count, (uint32_t)BIAS_MAX);
    for (uint32_t i = threadIdx.x; i < biases; i += THREADS) s.bias[i] = a.bias[(size_t)r * BIAS_MAX + i];
    __syncthreads();
    if (threadIdx.x < biases && s.bias[threadIdx.x].token < n) {
        // The first entry of a token adds all of that token's, in order.
        const uint32_t token = s.bias[threadIdx.x].token;
        bool first = true;
        for (uint32_t i = 0; i < threadIdx.x; i++) first &= s.bias[i].token != token;
        if (first)
            for (uint32_t i = threadIdx.x; i < biases; i++)
                if (s.bias[i].token == token) out[token] = __fadd_rn(out[token], s.bias[i].bias);
    }
    __syncthreads();
    if (p.masked) {
        const uint32_t* mask = a.masks + (size_t)r * ((n + 31) / 32);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            if (!(mask[i / 32] >> (i % 32) & 1)) out[i] = -INFINITY;
    }
    __syncthreads();
}

struct Kept {
    uint32_t threshold;
    uint64_t ties, mass;
};

// The shortest prefix with `need` tokens, or with a mass of `need`.
__device__ Kept prefix(Shared& s, const uint32_t* q, uint32_t len, bool by_tokens, uint64_t need, Kept all) {
    uint64_t above_tokens = 0, above_mass = 0;
    uint32_t base = 0;
    const uint32_t shifts[3] = {20, 10, 0}, bins_of[3] = {2048, 1024, 1024};
    for (int level = 0; level < 3; level++) {
        const uint32_t shift = shifts[level], bins = bins_of[level];
        for (uint32_t i = threadIdx.x; i < 2048; i += THREADS) {
            s.tokens[i] = 0;
            s.mass[i] = 0;
        }
        __syncthreads();
        const uint32_t first = base + (1u << shift), span = (bins - 1) << shift;
        for (uint32_t i = threadIdx.x; i < len; i += THREADS) {
            const uint32_t w = q[i];
            if (w - first < span) {
                atomicAdd(&s.tokens[(w - base) >> shift], 1u);
                atomicAdd((unsigned long long*)&s.mass[(w - base) >> shift], (unsigned long long)w);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t bin = bins - 1;
            while (bin > 0) {
                const uint64_t tokens = above_tokens + s.tokens[bin], mass = above_mass + s.mass[bin];
                if ((by_tokens ? tokens : mass) >= need) break;
                above_tokens = tokens;
                above_mass = mass;
                bin--;
            }
            s.out[0] = above_tokens;
            s.out[1] = above_mass;
            s.out[2] = base + (bin << shift);
        }
        __syncthreads();
        above_tokens = s.out[0];
        above_mass = s.out[1];
        base = (uint32_t)s.out[2];
        __syncthreads();
    }
    if (base == 0) return {1, ~0ull, all.mass};
    const uint64_t ties = by_tokens ? need - above_tokens : (need - above_mass + base - 1) / base;
    return {base, ties, above_mass + ties * base};
}

__device__ uint64_t draw_bits(const Params& p) {
    uint32_t c0 = p.position + 1, c1 = p.choice, c2 = 0, c3 = 0, k0 = p.seed_low, k1 = p.seed_high;
    for (int i = 0; i < 10; i++) {
        const uint64_t p0 = 0xd2511f53ull * c0, p1 = 0xcd9e8d57ull * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (uint64_t)c1 << 32 | c0;
}

__device__ uint32_t draw(Shared& s, const SampleArgs& a, const Params& p, const float* row, float m,
                         uint32_t* q) {
    const uint32_t n = a.vocab, len = a.scratch_words;
    const float inverse = fminf(__fdiv_rn(1.0f, p.temperature), 3.40282347e38f);
    uint64_t part = 0;
    for (uint32_t i = threadIdx.x; i < len; i += THREADS) {
        const float x = i < n ? __fmul_rn(__fsub_rn(row[i], m), inverse) : -INFINITY;
        const uint32_t w = __float2uint_rn(__fmul_rn(exp_exact(x), (float)UNIT));
        q[i] = w;
        part += w;
    }
    Kept kept = {1, ~0ull, 0};
    kept.mass = block_sum(s, part);
    if (p.top_k > 0 && p.top_k < len) kept = prefix(s, q, len, true, p.top_k, kept);
    if (p.top_p < 1.0f) {
        const double need = ceil(__dmul_rn((double)p.top_p, (double)kept.mass));
        uint64_t whole = need <= 0.0 ? 0 : (uint64_t)need;
        whole = whole < 1 ? 1 : whole > kept.mass ? kept.mass : whole;
        kept = prefix(s, q, len, false, whole, kept);
    }
    const double least_wide = ceil(__dmul_rn((double)p.min_p, (double)UNIT));
    const uint32_t least = least_wide <= 0.0 ? 0 : least_wide >= 4294967295.0 ? 0xffffffffu : (uint32_t)least_wide;
    if (least > kept.threshold) {
        kept = {min(least, UNIT), ~0ull, 0};
        part = 0;
        for (uint32_t i = threadIdx.x; i < len; i += THREADS)
            if (q[i] >= kept.threshold) part += q[i];
        kept.mass = block_sum(s, part);
    }
    const uint64_t left = __umul64hi(draw_bits(p), kept.mass);
    const uint32_t each = (len + THREADS - 1) / THREADS;
    const uint32_t begin = min(threadIdx.x * each, len), end = min(begin + each, len);
    uint64_t ties = 0, mass = 0;
    for (uint32_t i = begin; i < end; i++) {
        if (q[i] == kept.threshold) ties++;
        if (q[i] > kept.threshold) mass += q[i];
    }
    const uint64_t ties_before = block_before(s, ties);
    uint64_t ties_here = ties_before >= kept.ties ? 0 : kept.ties - ties_before;
    if (ties_here > ties) ties_here = ties;
    mass += ties_here * kept.threshold;
    const uint64_t before = block_before(s, mass);
    if (left >= before && left - before < mass) {
        uint64_t rest = left - before;
        for (uint32_t i = begin; i < end; i++) {
            const bool tie = q[i] == kept.threshold && ties_here > 0;
            if (q[i] > kept.threshold || tie) {
                ties_here -= tie;
                if (rest < q[i]) {
                    s.out[3] = i;
                    break;
                }
                rest -= q[i];
            }
        }
    }
    __syncthreads();
    return (uint32_t)s.out[3];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const __grid_constant__ SampleArgs a) {
    extern __shared__ __align__(16) unsigned char shared[];
    Shared& s = *(Shared*)shared;
    let_next_start();
    wait_for_previous();
    const uint32_t r = blockIdx.x;
    if (r >= min(*a.live, a.rows)) return;
    const Params p = a.params[r];
    const float* row = a.logits + (size_t)r * a.vocab;
    const uint32_t n = a.vocab;
    Best top = block_best(s, row, n, false, {});
    const float m = top.v;
    uint32_t status = OK, token = 0;
    if (s.nan || m == INFINITY) {
        status = NOT_FINITE;
    } else if (m == -INFINITY) {
        status = NOTHING_ALLOWED;
    } else if (p.target >= 0) {
        token = p.target;
        if (token >= n) { status = BAD_TARGET; token = 0; }
    } else {
        uint32_t* work = a.scratch + (size_t)r * a.scratch_words;
        const float* from = row;
        const bool penalties = p.repetition != 1.0f || p.presence != 0.0f || p.frequency != 0.0f;
        if (penalties || p.bias_count > 0 || p.masked) {
            adjust(s, a, p, r, row, work);
            from = (const float*)work;
            top = block_best(s, from, n, false, {});
            if (s.nan || top.v == INFINITY) status = NOT_FINITE;
            else if (top.v == -INFINITY) status = NOTHING_ALLOWED;
        }
        if (status == OK)
            token = p.temperature <= 0.0f || p.top_k == 1 ? top.i : draw(s, a, p, from, top.v, work);
    }
    Result* out = a.results + r;
    if (threadIdx.x < TOP_MAX) {
        out->top_ids[threadIdx.x] = 0;
        out->top_logprobs[threadIdx.x] = 0.0f;
    }
    float logprob = __int_as_float(0x7fc00000);
    uint32_t found = 0;
    if (status == OK && p.logprobs >= 0) {
        const double log_sum = block_log_sum(s, row, n, m);
        logprob = logprob_of(row[token], m, log_sum);
        const uint32_t count = min(p.logprobs, TOP_MAX);
        Best under = {};
        while (found < count) {
            const Best next = block_best(s, row, n, found > 0, under);
            if (next.v == -INFINITY) break;
            if (threadIdx.x == 0) {
                out->top_ids[found] = next.i;
                out->top_logprobs[found] = logprob_of(next.v, m, log_sum);
            }
            under = next;
            found++;
        }
    }
    if (threadIdx.x == 0) {
        out->token = token;
        out->status = status;
        out->logprob = logprob;
        out->top_count = found;
        const uint32_t slot = a.logit_slots[r];
        if (slot != 0 && p.target < 0) a.last_token[slot] = token;
    }
}
