"""FabricModel: elastic training of PyTorch models on a Shoal mesh.

   the user's script (driver)                      an engine, one per slot
   fabric_model.FabricModel --- one bundle --->    _engine  serves calls, epochs, files
      _arguments  checks                           _trainer one step: compute, reduce, apply
      _bundle     one pickle of everything         _compute one mini-batch
      _driver     hands over, loggers, result      _loader  samples by number
                                                   _state   everything a joiner needs, flat
      _travel     what travels, and how            _data    DataLoaders and iterables as samples by number
      _device     "cuda" where no GPU is           _batches who gets what of a batch
      _late       once torch is imported
      _dynamo     ... and its compiler, where something is compiled
                                                   _chance  every generator, seeded for each mini-batch
   both: _optimizers (one or several), _order (which sample is where), _schedule (which step is what), _records, _comm (libshoal),
   _collective (collectives on tensors)
"""

import os
import sys


def append_site():
    """cloudpickle and msgpack lie in $FABRIC_HOME/site, last on the path: the environment's own come first."""
    libs = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # of the zip this came from
    site = os.path.join(os.environ.get("FABRIC_HOME") or os.path.dirname(libs), "site")
    if os.path.isdir(site) and site not in sys.path:
        sys.path.append(site)


append_site()
