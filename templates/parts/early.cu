//%% The first statements of a kernel that may start while the kernel before it still runs.
//% if kernel.launches[1].early == 1 then
  grid_dependency_release(); // the next kernel may be set up beside this one
  grid_dependency_wait();    // what the kernels before this one wrote is there, and they are done with what they read
//% end
