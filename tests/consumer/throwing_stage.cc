// A stage in C++ that throws, as docs/your-trainer.md has it return a failure: forward() of that page
// is forward.inc.
#include <cstdio>
#include <stdexcept>
#include <weft/comm.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

#include "forward.inc"

static enum weft_status nothing(weft_stage *, weft_stage_call *, weft_error *) { return WEFT_OK; }

static enum weft_status rank_main(void *, weft_transport *transport, weft_error *error) {
  weft_named_source schedule = {};
  schedule.schedule = "1F1B", schedule.ranks = transport->rank_count;
  weft_tensor_shape shape = {};
  shape.dtype = WEFT_F32, shape.dim_count = 1, shape.dims[0] = 4;
  weft_boundary boundary = {};
  boundary.tensor_count = 1, boundary.tensors[0].largest = shape;
  weft_stage_ops ops = {};
  ops.forward = forward, ops.loss = ops.backward = nothing;
  weft_stage stage = {};
  stage.ops = &ops;
  weft_stage *stages[2] = {};
  stages[transport->rank] = &stage;

  weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = &schedule;
  options.microbatch_count = 2;
  options.stages = stages, options.stage_count = 2;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.scale_grads = false;
  weft_pipeline *pipeline = nullptr;
  WEFT_TRY(weft_pipeline_create(nullptr, transport, &options, &pipeline, error));

  float x[4] = {};
  weft_tensor input = {};
  input.data = x, input.shape = shape;
  weft_batch batch = {};
  batch.microbatch_count = 2, batch.inputs = &input, batch.input_count = 1;
  batch.targets = &input, batch.target_count = 1;
  weft_step_result result = {};
  const weft_status status = weft_pipeline_step(pipeline, &batch, &result, error);
  weft_pipeline_destroy(pipeline);
  return status;
}

int main() {
  weft_comm_options options = weft_comm_options_default();
  options.rank_count = 2;
  weft_comm *comm = nullptr;
  weft_error error = {};
  weft_status status = weft_comm_open(nullptr, "threads", &options, &comm, &error);
  if (status == WEFT_OK) status = weft_comm_run(comm, rank_main, nullptr, &error);
  std::puts(error.message);
  weft_comm_close(comm);
  return status == WEFT_OK ? 0 : 1;
}
