"""What the end-to-end tests share: a live node, the zoo of programs, and a look at sandboxes from outside."""
