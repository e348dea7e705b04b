print("a diary")
