import time

time.sleep(3600)

handler = None
