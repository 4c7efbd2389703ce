"""Training; inference needs nothing of it. The modules:

run                           the training loop (`Training`), built by `build_training`
trainer, state, build         one step: forward, losses, backward, update; the state that it changes
gpu_trainer, step_graphs      the same on a GPU, forward and backward as CUDA graphs
side_stream, indexed          a second stream, on which a batch is copied and indexed
fused_adamw, flat             the update of all weights in one call, on flat memory
transfer                      weights of another training to begin with
target_assigner, losses       matching of anchors with ground truth; class, box, direction losses
loader, workers               the frames of each step, and the processes that read them
schedule, ema, randomness     learning rate and momentum, averaged weights, seeds
validation, pictures          losses, AP and pictures of a model on a split
monitor, meters               progress bar, log.jsonl and TensorBoard, and the numbers for them
run_folder, checkpoints       weights and checkpoints in the output folder
identity                      what must be the same for --resume
distributed, peer_watch       several processes, which end together
stop_signal                   Ctrl-C and SIGTERM
finite_guard                  losses that are infinite or NaN
data_check, data_warnings     comparison of a data set with a configuration
"""
