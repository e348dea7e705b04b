"""What a load shows: latencies, bounds, the gate, doubts, scores and costs. No input or output."""
