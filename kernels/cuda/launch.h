/* SPDX-License-Identifier: MIT */
/*
 * launch.h: one function per kernel; they choose the grid and return a cudaError_t as int. The
 * arguments are described in params.h.
 */
#ifndef CUDA_LAUNCH_H
#define CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "params.h"

#ifdef __cplusplus
extern "C" {
#endif

int launch_input(cudaStream_t s, enum cuda_type t, const struct input_args *a);
int launch_bias_act(cudaStream_t s, enum cuda_type t, const struct bias_act_args *a);
int launch_linear_back(cudaStream_t s, enum cuda_type t, const struct linear_back_args *a);
int launch_partial_sum(cudaStream_t s, const struct partial_args *a);
int launch_activation(cudaStream_t s, enum cuda_type t, const struct act_args *a);
int launch_softmax(cudaStream_t s, enum cuda_type t, const struct softmax_args *a);
int launch_sum_nodes(cudaStream_t s, enum cuda_type t, const struct sum_args *a);
int launch_rescale(cudaStream_t s, enum cuda_type t, const struct rescale_args *a);
int launch_dropout(cudaStream_t s, enum cuda_type t, const struct dropout_args *a);
int launch_strided(cudaStream_t s, enum cuda_type t, const struct strided_args *a);
int launch_place(cudaStream_t s, enum cuda_type t, const struct place_args *a);
int launch_upsample(cudaStream_t s, enum cuda_type t, const struct upsample_args *a);
int launch_maxpool(cudaStream_t s, enum cuda_type t, const struct pool_args *a);
int launch_maxpool_back(cudaStream_t s, enum cuda_type t, const struct pool_args *a);
int launch_avgpool(cudaStream_t s, enum cuda_type t, const struct pool_args *a);
int launch_avgpool_back(cudaStream_t s, enum cuda_type t, const struct pool_args *a);
int launch_global_pool(cudaStream_t s, enum cuda_type t, const struct global_args *a);
int launch_global_back(cudaStream_t s, enum cuda_type t, const struct global_args *a);
int launch_norm_stats(cudaStream_t s, enum cuda_type t, const struct norm_stats_args *a);
int launch_norm_finish(cudaStream_t s, const struct norm_finish_args *a);
int launch_norm_apply(cudaStream_t s, enum cuda_type t, const struct norm_apply_args *a);
int launch_norm_back_sums(cudaStream_t s, enum cuda_type t, const struct norm_back_args *a);
int launch_norm_sums(cudaStream_t s, const struct norm_sums_args *a);
int launch_norm_back(cudaStream_t s, enum cuda_type t, const struct norm_back_args *a);
int launch_conv_own(cudaStream_t s, enum cuda_type t, const struct conv_args *a);
int launch_conv_own_data(cudaStream_t s, enum cuda_type t, const struct conv_args *a);
int launch_conv_own_filter(cudaStream_t s, enum cuda_type t, const struct conv_args *a);
int launch_depthwise(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a);
int launch_depthwise_data(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a);
int launch_depthwise_filter(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a);
int launch_pack(cudaStream_t s, enum cuda_type t, const struct pack_args *a, uint32_t tiles);
int launch_unpack(cudaStream_t s, enum cuda_type t, const struct unpack_args *a);
int launch_loss(cudaStream_t s, enum cuda_type t, const struct loss_args *a);
int launch_loss_sums(cudaStream_t s, const struct loss_sums_args *a);
/* gather, norms, finish, update: one after the other */
int launch_update(cudaStream_t s, const struct update_args *a);
int launch_penalty(cudaStream_t s, const struct update_args *a);
int launch_merge_mean(cudaStream_t s, const struct merge_mean_args *a);
int launch_merge_outer(cudaStream_t s, const struct merge_outer_args *a);
int launch_merge_moments(cudaStream_t s, const struct merge_moments_args *a);
int launch_merge_delta(cudaStream_t s, const struct merge_delta_args *a);

#ifdef __cplusplus
}
#endif

#endif
