"""Where the learner runs: this process (`rstar_trainer.learner`), or DeepSpeed ranks as Ray actors (here).

Ray and DeepSpeed are imported by the files that need them and never from here.
"""
