/* The end of a step: sums of squares, clipping and AdamW; and what else is done to parameters and
 * gradients as a whole. After gpt_layers.cu, whose names it uses. */

/* x[k] *= factor; four numbers per thread. */
WEFT_GLOBAL(scale, (float *x, double factor, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k < count) {
    float4 v = *(float4 *)(x + k);
    v.x *= (float)factor;
    v.y *= (float)factor;
    v.z *= (float)factor;
    v.w *= (float)factor;
    *(float4 *)(x + k) = v;
  }
}

/* a[k] = b[k] = a[k] + b[k]. */
WEFT_GLOBAL(tie, (float *a, float *b, weft_u64 count)) {
  const weft_u64 k = weft_thread();
  if (k < count) {
    a[k] = b[k] = a[k] + b[k];
  }
}

/* c[k] = a[k] + b[k]; four numbers per thread. */
WEFT_GLOBAL(add, (float *c, const float *a, const float *b, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k < count) {
    const float4 x = *(const float4 *)(a + k), y = *(const float4 *)(b + k);
    *(float4 *)(c + k) = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
  }
}

/* Activations: c[k] = a[k] + b[k], rounded once, so that a and b may change places; eight numbers
 * per thread. */
WEFT_GLOBAL(add_bf16, (weft_bf16 *c, const weft_bf16 *a, const weft_bf16 *b, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 8;
  if (k < count) {
    float x[8], y[8];
    weft_load8(x, a + k);
    weft_load8(y, b + k);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      x[e] += y[e];
    }
    weft_store8(c + k, x);
  }
}

/* To bf16; eight numbers per thread. */
WEFT_GLOBAL(to_bf16, (weft_bf16 *y, const float *x, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 8;
  if (k < count) {
    float v[8];
    *(float4 *)v = *(const float4 *)(x + k);
    *(float4 *)(v + 4) = *(const float4 *)(x + k + 4);
    weft_store8(y + k, v);
  }
}

/* sums[b] = the sum of squares of the b-th of `gridDim.x` parts of x; 256 threads. */
WEFT_GLOBAL(square_sums, (double *sums, const float *x, weft_u64 count, weft_u64 parts)) {
  __shared__ double warps[8];
  const weft_u64 each = ((count + parts - 1) / parts + 3) / 4 * 4, begin = blockIdx.x * each;
  const weft_u64 end = begin + each < count ? begin + each : count;
  double sum = 0;
  for (weft_u64 k = begin + threadIdx.x; k < end; k += 256) {
    sum += (double)x[k] * (double)x[k];
  }
  sum = weft_warp_sum_f64(sum);
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; w++) {
      sum += warps[w];
    }
    sums[blockIdx.x] = sum;
  }
}

/* sums[b] = the sum of parts[b], `count` numbers; 256 threads for each of `sum_count`. */
WEFT_GLOBAL(sum_parts, (double *sums, const double *parts, weft_u64 count, weft_u64 sum_count)) {
  __shared__ double warps[8];
  double sum = 0;
  for (weft_u64 k = threadIdx.x; k < count; k += 256) {
    sum += parts[blockIdx.x * count + k];
  }
  sum = weft_warp_sum_f64(sum);
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x < sum_count) {
    for (int w = 1; w < 8; w++) {
      sum += warps[w];
    }
    sums[blockIdx.x] = sum;
  }
}

/* The norm of all gradients, and the settings of AdamW with the factor that clips them. `sums`: the
 * squares of each replica's layers, [replicas][layers], then `losses` losses; added up in
 * the order of layers, as the host does (step_stats.c). `step`: six settings, the norm to clip at
 * (0: none), and whether gradients that are not finite count. One block of 1024 threads. */
WEFT_GLOBAL(clip, (float *settings, double *norm, const double *sums, const double *step,
                   weft_u64 layers, weft_u64 replicas, weft_u64 losses)) {
  __shared__ double some[1024];
  const weft_u64 squares = layers * replicas, count = squares + losses;
  double sum = 0, of_layer = 0, loss = 0;
  for (weft_u64 begin = 0; begin < count; begin += 1024) {
    const weft_u64 i = begin + threadIdx.x;
    __syncthreads();
    if (i < count) {
      some[threadIdx.x] = sums[i < squares ? i % replicas * layers + i / replicas : i];
    }
    __syncthreads();
    for (weft_u64 k = begin; threadIdx.x == 0 && k < count && k < begin + 1024; k++) {
      if (k >= squares) {
        loss += some[k - begin];
        continue;
      }
      of_layer += some[k - begin];
      if ((k + 1) % replicas == 0) {
        sum += of_layer;
        of_layer = 0;
      }
    }
  }
  if (threadIdx.x < 6) {
    settings[threadIdx.x] = (float)step[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    const double all = sqrt(sum), most = step[6];
    *norm = all;
    settings[6] = most > 0 && all > most ? (float)(most / (all + 1e-6)) : 1;
    settings[7] = step[7] != 0 || (all - all == 0 && loss - loss == 0) ? 1 : 0;
  }
}

/* AdamW, as the host's (weft_gpt_adamw_update), and the new weights in bf16, if wanted; four numbers per
 * thread. `settings`: 1 - rate * decay, rate / correction1, 1 / sqrt(correction2), epsilon, beta1,
 * beta2, the gradients' factor, and 0 for a step that is skipped. decays[k / 16]: whether weight
 * decay applies to 16 numbers. */
WEFT_GLOBAL(adamw, (float *w, float *m, float *v, weft_bf16 *rounded, const float *gradients,
                    const unsigned char *decays, const float *settings, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k >= count || settings[7] == 0) {
    return;
  }
  const float keep = decays[k / 16] != 0 ? settings[0] : 1;
  const float step = settings[1], root = settings[2], epsilon = settings[3];
  const float beta1 = settings[4], beta2 = settings[5], factor = settings[6];
  float weights[4], first[4], second[4], gradient[4];
  *(float4 *)weights = *(const float4 *)(w + k);
  *(float4 *)first = *(const float4 *)(m + k);
  *(float4 *)second = *(const float4 *)(v + k);
  *(float4 *)gradient = *(const float4 *)(gradients + k);
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const float g = gradient[e] * factor;
    first[e] += (1 - beta1) * (g - first[e]);
    second[e] = beta2 * second[e] + (1 - beta2) * (g * g);
    weights[e] = weights[e] * keep - step * first[e] / (sqrtf(second[e]) * root + epsilon);
  }
  *(float4 *)(w + k) = *(const float4 *)weights;
  *(float4 *)(m + k) = *(const float4 *)first;
  *(float4 *)(v + k) = *(const float4 *)second;
  if (rounded != 0) {
    *(uint2 *)(rounded + k) =
        make_uint2(weft_pack(weights[0], weights[1]), weft_pack(weights[2], weights[3]));
  }
}
