-- wgmma.lua: the wgmma statements that a product takes, and codes of their descriptors.

local wgmma = {}

-- What matrix_descriptor takes, by the bytes of the swizzle.
wgmma.swizzle = {[128] = 1, [64] = 2, [32] = 3}

-- The primitive for N columns and so many steps of 16 along K.
function wgmma.name(n, steps, dtype, form) return ("wgmma_m64n%dk%d_%s_%s"):format(n, 16 * steps, dtype, form) end

-- The statements that make `count` steps of 16, each within a panel of so many steps: their first steps and sizes, the
-- panel, and the byte of its rows where they begin.
function wgmma.products(count, panel_steps)
  local list, first = {}, 0
  while first < count do
    local steps = 8
    while first + steps > count or first % panel_steps + steps > panel_steps do steps = steps // 2 end
    local panel, column = first // panel_steps, first % panel_steps * 32 -- a step is 32 bytes
    list[#list + 1] = {first = first, steps = steps, panel = panel, column = column}
    first = first + steps
  end
  return list
end

-- The text of descriptor `name`, moved by so many panels of `panel` bytes (a constant's name) and by `bytes`.
function wgmma.at(name, panel, panels, bytes)
  local sum = {}
  if panels > 0 then sum[1] = (panels > 1 and panels .. " * " or "") .. panel end
  if bytes > 0 then sum[#sum + 1] = bytes end
  return #sum > 0 and ("descriptor_advance(%s, %s)"):format(name, table.concat(sum, " + ")) or name
end

return wgmma
