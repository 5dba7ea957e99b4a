raise ImportError("libghost.so.9 is not there")
