/* The cuda transport: all ranks in this process, on its GPUs. Messages are those of threads, a
 * hand-over of the buffer, with an event of the GPU for its content (weft/transport.h). What
 * differs is who calls: launching work from several threads costs more than from one, because the
 * driver has a lock, and a CUDA graph of all ranks can be recorded by one thread only. So the ranks
 * arrive at a barrier in weft_pipeline_step(), and the last one runs the step of all of them. */
#include "comm/threads/threads.h"

const struct weft_comm_kind weft_cuda_kind = {
    .info = {.name = "cuda", .gpus = true, .gpus_only = true},
    .one_thread = true,
    .open = weft_threads_open,
    .close = weft_threads_close,
    .endpoint = weft_threads_endpoint,
    .run = weft_threads_run,
};
