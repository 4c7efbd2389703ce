"""Training; inference needs nothing of it. The modules:

run                     the training loop (`Training`), made by `build_training`
build                   a trainer from a configuration; weights to begin with; seeds
trainer                 one step: forward, losses, backward, update; rates; what is not finite
gpu_trainer             the same on a GPU: as CUDA graphs, all weights updated in one call, batches
                        indexed ahead
losses                  target assignment; class, box, direction and varifocal losses
loader                  the frames of each step, and the processes that read them
validation              losses and AP of a model on a split
monitor                 progress bar, log.jsonl, TensorBoard, pictures, and the numbers for them
checkpoints             state of a run, averaged weights (EMA), --resume, the output folder
distributed             several processes, which end and stop together
"""
