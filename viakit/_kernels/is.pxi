# IS: ranking of integers.
