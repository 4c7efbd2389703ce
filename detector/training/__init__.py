"""Everything of a training run; inference needs none of it.

run             the loop over steps, and how it is put together (`build_training`)
trainer         one step: forward, losses, backward, update; state is what a step changes
target_assigner, losses       what the predictions should be, and how far from it they are
loader, workers               which frames a step reads, and the processes that read them
bev_graph, side_stream        what makes a step fast on a GPU
schedule, ema, randomness     learning rate and momentum, averaged weights, seeds
validation, pictures          losses, AP and pictures of a model on a split
monitor, meters               the progress bar, log.jsonl and TensorBoard, and the numbers for them
run_folder, checkpoints, identity   what is saved, and what may be gone on from
distributed, stop_signal, finite_guard   several processes, signals, losses that are no number
data_check, data_warnings     what does not fit between a data set and a configuration
"""
