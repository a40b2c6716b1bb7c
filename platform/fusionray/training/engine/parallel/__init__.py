"""Several ranks: strategies of data parallelism, the exchange of gradients, what ranks agree on."""
