"""How trajectories are made: engines, agent loop, scheduler, Resample-on-Correct"""
