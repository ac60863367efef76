"""All knowledge of ops, one file per family: price, bytes, kernels, calibrated family, layout, scratch memory."""
